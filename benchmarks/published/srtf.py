"""Give slots to the jobs with the shortest remaining time first (SRTF); the others wait.

:class:`Srtf` is the policy. The remaining time of a job is the time of its remaining steps, each
with the slots that its user requested and its present batch, on as few nodes as possible. Jobs lose
their slots to shorter ones, except jobs that may not be preempted. A job that is too large for the
slots that are left is overtaken. A long job may starve: there is no bound on its wait while shorter
jobs arrive.
"""

from __future__ import annotations

from dataclasses import dataclass

from edl.cluster.placing import compact
from edl.cluster.policies.tiresias import Ranked, admit
from edl.cluster.state import Allocation, ClusterJob, ClusterState


@dataclass(frozen=True)
class Srtf:
    """The cluster policy `srtf`: shortest remaining time first, with preemption."""

    def __call__(self, cluster: ClusterState) -> Allocation:
        largest = cluster.per_node
        left_s = {job.name: remaining_s(job, largest) for job in cluster.jobs}
        ranking = [
            Ranked(job, f"{left_s[job.name]:.0f} s remain")
            for job in sorted(cluster.jobs, key=lambda job: left_s[job.name])
        ]
        return admit(ranking, cluster)


def remaining_s(job: ClusterJob, slots_a_node: int) -> float:
    """Return the seconds until the job ends, with its requested slots and its present batch."""
    slots = compact(job.requested_slots, slots_a_node)
    return job.model.steps_left(job.batch) * job.model.step_s(slots, job.batch)
