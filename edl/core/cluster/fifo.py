"""First in, first out: in the order of submission, and nobody loses the slots that it has.

Each job has the slots that it requested. Without backfilling the first job that does not fit holds
all later ones up: it starts as soon as enough slots are free, so no job waits for one submitted
after it. With backfilling those behind it that fit start before it. No slots are reserved for it,
so there is no bound on its wait while smaller ones arrive.

By weight, heavier ones come first among those that wait, so a light one may wait without bound: the
"priority" scheduler that VirtualFlow (MLSys 2022) compares itself with.
"""

from __future__ import annotations

from dataclasses import dataclass

from edl.core.cluster.ranked import Ranked, admit
from edl.core.cluster.state import Allocation, ClusterJob, ClusterState
from edl.core.settings import setting


@dataclass(frozen=True)
class Fifo:
    """Policies ``fifo``, ``fifo_backfill`` and ``priority``."""

    backfill: bool = setting(False, "whether a job that fits may start before an earlier one")
    by_weight: bool = setting(False, "whether heavier jobs come before lighter ones")

    def __call__(self, cluster: ClusterState) -> Allocation:
        """See :class:`edl.core.cluster.state.Policy`."""
        running = [
            Ranked(job, "it runs to its end") for job in cluster.jobs if job.name in cluster.present
        ]
        waiting = [job for job in cluster.jobs if job.name not in cluster.present]
        if self.by_weight:
            waiting.sort(key=lambda job: -job.weight)
        ranking = running + [Ranked(job, self._why(job, cluster.now_s)) for job in waiting]
        return admit(ranking, cluster, overtaking=self.backfill)

    @property
    def in_order(self) -> bool:
        """See :class:`edl.core.cluster.state.QueuePolicy`."""
        return not (self.backfill or self.by_weight)

    def _why(self, job: ClusterJob, now_s: float) -> str:
        submitted = f"submitted {now_s - job.arrival_s:.0f} s ago"
        return f"weight {job.weight:g}, {submitted}" if self.by_weight else submitted
