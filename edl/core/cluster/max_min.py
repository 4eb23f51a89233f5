"""Share the slots equally among the jobs, within the limits of each job (max-min fairness).

1. Each job gets its minimum, in the order of submission. A job whose minimum does not fit waits;
   later jobs that fit do not wait for it.
2. The remaining slots are given one by one to the job that has the fewest and may have more. Ties
   go to the job that was submitted first (progressive filling).

Beyond the minima, no job gets a slot while a job that could use it has fewer. Where all minima are
1, no job ever loses a slot when a node is added. While there are fewer slots than jobs, the jobs
that came last wait for others to end. A job with a minimum above 1 has no bound on its wait while
smaller jobs arrive.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from edl.core.cluster.placing import first_that_fit, place_slots
from edl.core.cluster.state import Allocation, ClusterJob, ClusterState
from edl.core.plural import counted


@dataclass(frozen=True)
class MaxMin:
    """The cluster policy `max_min`: equal shares of the slots, within the limits of each job."""

    def __call__(self, cluster: ClusterState) -> Allocation:
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
        return Allocation(place_slots(sizes, cluster), reasons, cluster.state)


def shares(jobs: Sequence[ClusterJob], fixed: dict[str, int], slots: int) -> dict[str, int]:
    """Return the max-min fair number of slots of each job, by job name."""
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
