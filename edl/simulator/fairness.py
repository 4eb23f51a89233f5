"""Finish-time fairness: a job's completion time beside the one on its own part of the cluster.

    rho = completion time / time on an isolated 1/N of the slots

with N the mean number of jobs in the cluster while the job is there, itself included: arrived, and
neither ended nor turned away (Themis, Mahajan et al., NSDI 2020, section 3; N as in the evaluation
of Sia, SOSP 2023). Up to 1 the job lost nothing by sharing. The largest rho of all jobs says how
the worst one fared.

Isolated, the job trains with the batch that its user asked for, on whole slots of as few nodes as
can be, at most as many as it may have; it begins at once, and nothing is charged for that. Of less
than its minimum it has that minimum for the part of the time that makes its share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edl.core.cluster.placing import compact
from edl.core.cluster.state import Node, total
from edl.simulator.results import JobResult
from edl.simulator.work import SubmittedJob


def with_isolated(
    submissions: Sequence[SubmittedJob], results: Sequence[JobResult], nodes: Sequence[Node]
) -> tuple[JobResult, ...]:
    """The results, with the isolated time of each job that was not turned away.

    Args:
        results: of the submissions, one each, in their order.
    """
    beside = mean_beside(results)
    slots, largest = total(nodes), max(node.slots for node in nodes)
    return tuple(
        one
        if one.dropped
        else replace(one, isolated_s=isolated_s(submitted, slots / count, largest))
        for submitted, one, count in zip(submissions, results, beside, strict=True)
    )


def mean_beside(results: Sequence[JobResult]) -> list[float]:
    """The mean number of jobs that are there while each of them is; at least 1."""
    came, went = [np.sort([getattr(one, at) for one in results]) for at in ("arrival_s", "end_s")]
    times = np.unique(np.concatenate((came, went)))
    there = np.searchsorted(came, times, "right") - np.searchsorted(went, times, "right")
    job_s = np.concatenate(([0.0], np.cumsum(there[:-1] * np.diff(times))))
    means = []
    for one in results:
        begun, ended = np.searchsorted(times, (one.arrival_s, one.end_s))
        seconds = max(one.end_s - one.arrival_s, 1e-9)
        means.append(max(1.0, float(job_s[ended] - job_s[begun]) / seconds))
    return means


def isolated_s(job: SubmittedJob, share: float, slots_a_node: int) -> float:
    """Seconds that the job takes alone on so many slots."""
    most = job.max_slots
    if job.local_batches is not None:
        most = min(most, job.batch // job.local_batches[0])
    count = max(job.min_slots, min(int(share), most))
    placement, seconds, progress = compact(count, slots_a_node), 0.0, 0.0
    for epoch in range(job.work.epochs):
        goal = job.work.end_of(epoch)
        seconds += (goal - progress) / job.work.rate(placement, job.batch, epoch)
        progress = goal
    return seconds * max(1.0, count / share)
