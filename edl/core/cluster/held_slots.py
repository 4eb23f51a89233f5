"""Let each job keep its slots: what a live cluster does while its policy cannot be asked.

A policy may fail with an error, or be one that this version of edl does not have. Jobs that end or
shrink give their slots back as ever; nobody gets them until the policy works again.
"""

from __future__ import annotations

from dataclasses import dataclass

from edl.core.cluster.state import Allocation, ClusterState


@dataclass(frozen=True)
class HeldSlots:
    """The cluster policy that changes nothing: each job keeps its slots, and no job gets any.

    Attributes:
        why: why the cluster's policy is not asked, as a sentence for the reasons.
    """

    why: str = ""

    def __call__(self, cluster: ClusterState) -> Allocation:
        """Return the decision that each job of ``cluster`` keeps exactly the slots that it has."""
        reasons = {
            job.name: f"{'keeps its slots' if job.name in cluster.present else 'waits'}: {self.why}"
            for job in cluster.jobs
        }
        return Allocation(dict(cluster.present), reasons, cluster.state)
