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

from edl.cluster.placing import first_that_fit, place_slots
from edl.cluster.policies.tiresias import Ranked, admit
from edl.cluster.state import Allocation, ClusterJob, ClusterState, slot_count
from edl.spec import setting
from edl.text import counted

# ------------------------------------------------------------
# Start jobs in the order of submission, and let each keep its slots until it ends (FIFO).
#
# Each job gets the slots that it requested. Without backfilling, the first job that does not fit
# holds up all later jobs. It starts as soon as enough slots are free, so no job waits for a job
# that was submitted after it. With backfilling, later jobs that fit start before that job. No slots
# are reserved for that job, so its wait has no bound while smaller jobs arrive.
#
# If nodes are lost, jobs that run keep what they have, or shrink, and grow back before others
# start, except with slots of which none of their allowed sizes can be made (`admit`).
#
# By weight, heavier jobs come first among the waiting jobs, so a light job may wait without bound.
# This is the "priority" scheduler that VirtualFlow (MLSys 2022) is compared with by its authors.


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
        return not (self.backfill or self.by_weight)

    def _why(self, job: ClusterJob, now_s: float) -> str:
        submitted = f"submitted {now_s - job.arrival_s:.0f} s ago"
        return f"weight {job.weight:g}, {submitted}" if self.by_weight else submitted


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
