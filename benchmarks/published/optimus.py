"""Give each slot to the job that saves most time by it: Optimus, as in Pollux' artifact.

:class:`Optimus` is the policy. The seconds that one more slot saves a job with k slots and n steps
left are

    n * (T(k) - T(k + 1))

T(k) is the time of a step with the job's present batch, on as few nodes as possible (the greedy
rule of Optimus, EuroSys 2018; there n and T are fitted, here they are known).

First each job gets its minimum while slots last: smaller minima first, then in the order of
submission. Then slots are given one by one, ties by that order, until no job gains. All jobs may be
resized at each decision, except jobs with slots that may not be preempted, which keep them. A job
waits while the minima of the jobs before it take all slots. A job with a larger minimum has no
bound on its wait while jobs with smaller ones arrive.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edl.cluster.placing import compact, place_slots
from edl.cluster.state import Allocation, ClusterJob, ClusterState
from edl.text import counted


@dataclass(frozen=True)
class Optimus:
    """The cluster policy `optimus`: each slot goes to the job that saves most time by it."""

    def __call__(self, cluster: ClusterState) -> Allocation:
        fixed = cluster.fixed
        left = cluster.slots - sum(fixed.values())
        order = sorted(
            (job for job in cluster.jobs if job.name not in fixed), key=lambda j: j.min_slots
        )
        sizes: dict[str, int] = {}
        for job in order:
            sizes[job.name] = job.min_slots if job.min_slots <= left else 0
            left -= sizes[job.name]
        gains = _give(order, sizes, left, cluster.per_node)
        # The artifact places small jobs first, and those of one size in the order of submission.
        ascending = sorted(
            (job for job in cluster.jobs if job.name in sizes), key=lambda j: sizes[j.name]
        )
        allocation = place_slots(fixed | {job.name: sizes[job.name] for job in ascending}, cluster)
        return Allocation(allocation, _reasons(cluster.jobs, sizes, gains), cluster.state)


def gain_s(job: ClusterJob, slots: int, slots_a_node: int) -> float:
    """Return the seconds that one more slot saves a job until its end; may be negative."""
    if slots >= job.most_slots(job.batch):
        return 0.0
    now_s = job.model.step_s(compact(slots, slots_a_node), job.batch)
    then_s = job.model.step_s(compact(slots + 1, slots_a_node), job.batch)
    return (now_s - then_s) * job.model.steps_left(job.batch)


def _give(
    order: Sequence[ClusterJob], sizes: dict[str, int], left: int, largest: int
) -> dict[str, float]:
    """Give `left` slots one by one, each to the job that saves most time by it."""
    gains = {job.name: gain_s(job, sizes[job.name], largest) for job in order if sizes[job.name]}
    most = [(-gains[job.name], at) for at, job in enumerate(order) if job.name in gains]
    heapq.heapify(most)
    while left and most and most[0][0] < 0:
        _, at = most[0]
        job = order[at]
        sizes[job.name] += 1
        left -= 1
        gains[job.name] = gain_s(job, sizes[job.name], largest)
        heapq.heapreplace(most, (-gains[job.name], at))
    return gains


def _reasons(
    jobs: Sequence[ClusterJob], sizes: Mapping[str, int], gains: Mapping[str, float]
) -> dict[str, str]:
    """Return the clause that says why each job has its slots or waits, by the job's name."""
    reasons = {}
    for job in jobs:
        if job.name not in sizes:
            reasons[job.name] = "keeps its slots: it may not be preempted"
        elif job.name not in gains:
            needs = counted(job.min_slots, "slot")
            reasons[job.name] = f"waits: it needs {needs}, and earlier jobs have all others"
        else:
            slots, gain = counted(sizes[job.name], "slot"), gains[job.name]
            reasons[job.name] = f"has {slots}: one more would save {gain:.0f} s"
    return reasons
