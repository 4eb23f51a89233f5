"""Compute finish-time fairness, rho: a job's completion time divided by its time on its own share.

    rho = completion time / time in isolation on 1/N of the cluster's slots

:func:`with_isolated` adds the time in isolation to results; ``JobResult.finish_time_fairness`` is
rho. A rho up to 1 means that the job lost nothing by sharing the cluster; a larger one is worse.
The largest rho of all jobs is the one of the job that was treated worst. N is the mean number of
jobs in the cluster while the job is there, itself included. A job is there when it has arrived and
has neither ended nor been rejected (Themis, Mahajan et al., NSDI 2020, section 3; N as in the
evaluation of Sia, SOSP 2023).

In isolation, the job trains with the batch that its user asked for, on whole slots of as few nodes
as possible, with at most as many slots as it may have. It begins at once, at no cost. If its share
is less than its minimum, it has its minimum for only a fraction of the time, such that its mean
number of slots is its share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from edl.cluster.placing import compact
from edl.cluster.state import Node, total
from edl.simulator.results import JobResult
from edl.simulator.work import SubmittedJob


def with_isolated(
    submissions: Sequence[SubmittedJob], results: Sequence[JobResult], nodes: Sequence[Node]
) -> tuple[JobResult, ...]:
    """Return `results` in the same order, with `isolated_s` set unless the job was rejected."""
    beside = mean_beside(results)
    slots, largest = total(nodes), max(node.slots for node in nodes)
    return tuple(
        one
        if one.dropped
        else replace(one, isolated_s=isolated_s(submitted, slots / count, largest))
        for submitted, one, count in zip(submissions, results, beside, strict=True)
    )


def mean_beside(results: Sequence[JobResult]) -> list[float]:
    """Return for each job the mean number of jobs in the cluster from its arrival to its end."""
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
    """Return the seconds that `job` would take alone on its share of the cluster."""
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
