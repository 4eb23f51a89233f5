"""Start jobs in the order of submission, and let each keep its slots until it ends (FIFO).

Each job gets the slots that it requested. Without backfilling, the first job that does not fit
holds up all later jobs. It starts as soon as enough slots are free, so no job waits for a job that
was submitted after it. With backfilling, later jobs that fit start before that job. No slots are
reserved for that job, so its wait has no bound while smaller jobs arrive.

If nodes are lost, jobs that run keep what they have, or shrink, and grow back before others start,
except with slots of which none of their allowed sizes can be made
(:func:`edl.core.cluster.ranked.admit`).

By weight, heavier jobs come first among the waiting jobs, so a light job may wait without bound.
This is the "priority" scheduler that VirtualFlow (MLSys 2022) is compared with by its authors.
"""

from __future__ import annotations

from dataclasses import dataclass

from edl.core.cluster.ranked import Ranked, admit
from edl.core.cluster.state import Allocation, ClusterJob, ClusterState, slot_count
from edl.core.settings import setting


@dataclass(frozen=True)
class Fifo:
    """The cluster policies `fifo`, `fifo_backfill` and `priority`, which take no slots away."""

    backfill: bool = setting(False, "whether a job that fits may start before an earlier one")
    by_weight: bool = setting(False, "whether heavier jobs come before lighter ones")

    def __call__(self, cluster: ClusterState) -> Allocation:
        running, incomplete, waiting = [], [], []
        for job in cluster.jobs:
            if job.name not in cluster.present:
                waiting.append(job)
            elif slot_count(cluster.present[job.name]) < job.min_slots:
                incomplete.append(Ranked(job, "it has lost slots"))
            else:
                running.append(Ranked(job, "it runs to its end"))
        if self.by_weight:
            waiting.sort(key=lambda job: -job.weight)
        queue = [Ranked(job, self._why(job, cluster.now_s)) for job in waiting]
        # Jobs with too few slots to train come after the running and before the waiting ones.
        return admit(running + incomplete + queue, cluster, overtaking=self.backfill)

    @property
    def in_order(self) -> bool:
        """Whether no job starts before a job that was submitted earlier."""
        return not (self.backfill or self.by_weight)

    def _why(self, job: ClusterJob, now_s: float) -> str:
        submitted = f"submitted {now_s - job.arrival_s:.0f} s ago"
        return f"weight {job.weight:g}, {submitted}" if self.by_weight else submitted
