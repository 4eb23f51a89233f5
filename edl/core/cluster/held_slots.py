"""Let each job keep its slots: what a live cluster does while its policy cannot be asked.

A policy may fail with an error, or be one that this version of edl does not have. Jobs that end or
shrink give their slots back as ever; nobody gets them until the policy works again.
"""

from __future__ import annotations

from dataclasses import dataclass

from edl.core.cluster.stable_placing import trimmed
from edl.core.cluster.state import Allocation, ClusterState, slot_count


@dataclass(frozen=True)
class HeldSlots:
    """The cluster policy that changes nothing: each job keeps its slots, and no job gets more."""

    why: str = ""  # why the cluster's policy is not asked, as a sentence for the reasons

    def __call__(self, cluster: ClusterState) -> Allocation:
        kept, reasons = {}, {}
        for job in cluster.jobs:
            present = cluster.present.get(job.name, ())
            size = slot_count(present)
            what = "keeps its slots" if size else "waits"
            if size >= job.min_slots:
                # The hosts that are left may allow fewer.
                kept[job.name] = tuple(trimmed(dict(present), job.max_slots).items())
            elif size:
                what = f"has {size} of at least {job.min_slots} slots, and gets no others"
            reasons[job.name] = f"{what}: {self.why}"
        return Allocation(kept, reasons, cluster.state)
