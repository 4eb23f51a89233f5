"""Shortest remaining time first: who would end soonest has its slots, the others wait.

The remaining time of a job is that of its remaining steps, each with the slots and the batch that
its user requested, on as few nodes as can be. Jobs are preempted. A job too large for what is left
is overtaken. A long job may starve: there is no bound on its wait while shorter ones arrive.
"""

from __future__ import annotations

from dataclasses import dataclass

from edl.core.cluster.placing import compact
from edl.core.cluster.ranked import Ranked, admit
from edl.core.cluster.state import Allocation, ClusterJob, ClusterState


@dataclass(frozen=True)
class Srtf:
    """Policy ``srtf``."""

    def __call__(self, cluster: ClusterState) -> Allocation:
        """See :class:`edl.core.cluster.state.Policy`."""
        largest = cluster.per_node
        left_s = {job.name: remaining_s(job, largest) for job in cluster.jobs}
        ranking = [
            Ranked(job, f"{left_s[job.name]:.0f} s remain")
            for job in sorted(cluster.jobs, key=lambda job: left_s[job.name])
        ]
        return admit(ranking, cluster)


def remaining_s(job: ClusterJob, slots_a_node: int) -> float:
    """Seconds until the job ends, with the slots and the batch that its user requested."""
    slots = compact(job.requested_slots, slots_a_node)
    return job.model.steps_left(job.batch) * job.model.step_s(slots, job.batch)
