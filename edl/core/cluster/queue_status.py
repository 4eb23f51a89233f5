"""Define what is shown of a queue of a cluster, and measure how fairly its jobs were treated.

**Finish-time fairness**, rho, of a job is its completion time divided by the time that it would
have taken alone on its part of the cluster (Themis, Mahajan et al., NSDI 2020, section 3):

    rho = (end - submission) / isolated time,   isolated time = slot-seconds / min(part, max)

Its part is that of its queue divided by the number of the queue's jobs, on average while the job
was there. The part of a queue is what it has when all queues want all slots: its quota, and its
weight's share of the rest. A rho up to 1 says that the job lost nothing by sharing the cluster.

All of it is from the records of jobs that have finished and are still kept. So the speed of a job
is taken to grow in proportion to its slots, the cluster to have always had the slots that it has
now, and time during which a user has halted the job counts as well.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated

from edl.core.cluster.job_life import LifeResult, LifeState
from edl.core.cluster.queue_shares import NO_QUEUE, QueueRequest, queue_shares
from edl.core.cluster.view import ClusterView, JobView
from edl.core.record import Record


@dataclass(frozen=True)
class QueueStatus(Record):
    """One queue of a cluster as `edl cluster status` and `edl queue list` show it."""

    queue: Annotated[str, "its name"]
    quota: Annotated[int, "its guaranteed slots"]
    weight: Annotated[float, "its share of the slots that no quota needs"]
    most: Annotated[int | None, "the most slots that its jobs may have together; null: no limit"]
    slots: Annotated[int, "slots that its jobs have"]
    guaranteed: Annotated[int, "those of `slots` that are within its quota"]
    surplus: Annotated[int, "those of `slots` that are beyond its quota"]
    running: Annotated[int, "its jobs that start, train or halt"]
    waiting: Annotated[int, "its jobs that are queued"]
    finished: Annotated[int, "its jobs that have finished and are still in the records"]
    mean_rho: Annotated[
        float | None, "mean finish-time fairness of these; null: none has finished"
    ] = None
    worst_rho: Annotated[float | None, "the largest of these; null: none has finished"] = None
    is_set: Annotated[
        bool, "whether the queue has a record; false: jobs name it, and none set it"
    ] = True
    part: Annotated[int, "slots that it has while all queues want all slots"] = 0


def queue_statuses(view: ClusterView) -> tuple[QueueStatus, ...]:
    """Return the status of each queue of a cluster, by name; empty if the cluster has none."""
    if not view.queues:
        return ()
    living = [job for job in view.jobs if job.life.state is not LifeState.ENDED]
    names = sorted({*view.queues, *(job.manifest.queue for job in living)})
    slots = sum(len(host.offer.numbers) for host in view.hosts if host.offer is not None)
    requests = [QueueRequest(name, slots, view.queues.get(name, NO_QUEUE)) for name in names]
    parts = queue_shares(requests, slots)
    found = []
    for name in names:
        record = view.queues.get(name, NO_QUEUE)
        jobs = [job for job in view.jobs if job.manifest.queue == name]
        used = sum(job.life.slots for job in jobs)
        states = [job.life.state for job in jobs]
        rhos = finish_time_fairness(jobs, parts[name])
        found.append(
            QueueStatus(
                queue=name,
                quota=record.quota,
                weight=record.weight,
                most=record.most,
                slots=used,
                guaranteed=min(used, record.quota),
                surplus=max(0, used - record.quota),
                running=sum(state.has_run for state in states),
                waiting=states.count(LifeState.QUEUED),
                finished=len(rhos),
                mean_rho=sum(rhos) / len(rhos) if rhos else None,
                worst_rho=max(rhos, default=None),
                is_set=name in view.queues,
                part=parts[name],
            )
        )
    return tuple(found)


def finish_time_fairness(jobs: Sequence[JobView], part: int) -> list[float]:
    """Return the finish-time fairness of each job that has finished, in the order of `jobs`."""
    came_s = _Moments([_submitted_s(job) for job in jobs])
    went_s = _Moments([job.life.ended_s for job in jobs if job.life.ended_s])
    found = []
    for job in jobs:
        life, begun_s = job.life, _submitted_s(job)
        taken_s = life.ended_s - begun_s
        if life.result is not LifeResult.FINISHED or taken_s <= 0 or life.attained_slot_s <= 0:
            continue
        job_s = came_s.between(begun_s, life.ended_s) - went_s.between(begun_s, life.ended_s)
        own_part = part / max(1.0, job_s / taken_s)
        slots = min(own_part, job.manifest.allowed_sizes.max_np or own_part)
        found.append(taken_s * slots / life.attained_slot_s)
    return found


def _submitted_s(job: JobView) -> float:
    """Return when a job was submitted, in seconds since 1970, by the leader's record of it."""
    return job.life.submitted_s or job.submitted_s


class _Moments:
    """Moments in time, of which it is counted how many have passed, on average over a time."""

    def __init__(self, moments: Sequence[float]) -> None:
        self._moments = sorted(moments)
        self._sums = [0.0, *accumulate(self._moments)]

    def between(self, first_s: float, last_s: float) -> float:
        """Return the integral from `first_s` to `last_s`, in seconds times moments."""
        return self._until(last_s) - self._until(first_s)

    def _until(self, time_s: float) -> float:
        count = bisect(self._moments, time_s)
        return count * time_s - self._sums[count]
