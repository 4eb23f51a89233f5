"""Max-min fairness of slots: nobody has more while another who could use one has fewer.

Each job gets its minimum, in the order of submission; who does not fit waits, and those behind it
that fit do not. The rest is given one by one to whoever has fewest and may have more, ties by that
order (progressive filling). So where all minima are 1, no job ever loses a slot when a node is
added. While there are fewer slots than jobs, who came last waits for others to end; a job of a
minimum above 1 has no bound on its wait while smaller ones arrive.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from edl.core.cluster.placing import first_that_fit, place
from edl.core.cluster.state import Allocation, ClusterJob, ClusterState
from edl.core.plural import counted


@dataclass(frozen=True)
class MaxMin:
    """Policy ``max_min``."""

    def __call__(self, cluster: ClusterState) -> Allocation:
        """See :class:`edl.core.cluster.state.Policy`."""
        fixed = cluster.fixed
        sizes = shares(cluster.jobs, fixed, cluster.slots)
        reasons = {}
        shared = counted(len(sizes), "job")
        for job in cluster.jobs:
            if job.name in sizes:
                limit = f"it may have {job.min_slots} to {job.most_slots(job.batch)}"
                slots = counted(sizes[job.name], "slot")
                reasons[job.name] = f"has {slots}, its share among {shared}: {limit}"
            else:
                needs = counted(job.min_slots, "slot")
                reasons[job.name] = f"waits: it needs {needs}, and earlier jobs have all others"
        return Allocation(place(sizes, cluster), reasons, cluster.state)


def shares(jobs: Sequence[ClusterJob], fixed: dict[str, int], slots: int) -> dict[str, int]:
    """The slots of each job that gets some.

    Args:
        fixed: of jobs whose number may not change.
    """
    sizes = first_that_fit(jobs, fixed, slots, lambda job: job.min_slots)
    left = slots - sum(sizes.values())
    most = [job.most_slots(job.batch) for job in jobs]
    growing = [
        (sizes[job.name], at)
        for at, job in enumerate(jobs)
        if job.name in sizes and job.name not in fixed and sizes[job.name] < most[at]
    ]
    heapq.heapify(growing)
    while left and growing:
        count, at = heapq.heappop(growing)
        job = jobs[at]
        sizes[job.name] = count + 1
        left -= 1
        if count + 1 < most[at]:
            heapq.heappush(growing, (count + 1, at))
    return sizes
