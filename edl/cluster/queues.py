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

import heapq
from bisect import bisect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Annotated

from edl.cluster.lifecycle import LifeResult, LifeState
from edl.cluster.records import QueueRecord
from edl.cluster.view import ClusterView, JobView
from edl.errors import FEW, UsageError, nearest, some
from edl.record import Record
from edl.spec import Sizes
from edl.text import counted

# ------------------------------------------------------------
# Divide the slots of a cluster among its queues: quotas first, the rest by weight.
#
# `queue_shares` is a pure function of numbers. The slots are dealt one by one (progressive filling,
# which gives weighted max-min fairness):
#
# 1. Each queue keeps what cannot be taken from it now, such as the slots of a job that starts.
# 2. Quotas: each queue gets as many slots as its jobs can use, up to its quota. If the cluster has
#    fewer slots than that, they are dealt in proportion to the quotas.
# 3. Jobs that train: each queue gets as many slots as its jobs need to train on, each with its
#    fewest. So a job is halted for another queue's quota, and never for another queue's surplus.
# 4. Surplus: the slots that are left go to queues whose jobs can use more, in proportion to the
#    weights, up to the most that a queue may have.
#
# So an idle quota is lent, and is back with its queue as soon as its jobs can use it.


MAX_WEIGHT = 1e6
NO_QUEUE = QueueRecord()  # of jobs whose queue has no record: no quota, and the weight 1


@dataclass(frozen=True)
class QueueRequest:
    name: str
    usable: int  # the most slots that its jobs can use together
    record: QueueRecord = field(default_factory=QueueRecord)  # quota, weight and limit
    held: int = 0  # the slots that cannot be taken from its jobs now; at most those that they have
    least: int = 0  # the slots without which some of its jobs would be halted that train

    @property
    def limit(self) -> int:
        most = self.usable if self.record.most is None else min(self.usable, self.record.most)
        return max(self.held, most)


def queue_shares(requests: Sequence[QueueRequest], slots: int) -> dict[str, int]:
    """Return how many slots each queue may have, by its name; together at most `slots`."""
    given = {one.name: one.held for one in requests}
    quotas = {one.name: float(one.record.quota) for one in requests}
    weights = {one.name: one.record.weight for one in requests}
    guaranteed = {one.name: min(one.record.quota, one.limit) for one in requests}
    limits = {one.name: one.limit for one in requests}
    _fill(given, guaranteed, quotas, dict.fromkeys(given, 0), slots)
    bases = {name: min(count, guaranteed[name]) for name, count in given.items()}
    needed = {one.name: min(one.least, one.limit) for one in requests}
    for most in (needed, limits):
        _fill(given, most, weights, bases, slots)
    return given


def surplus_slots(
    jobs: Sequence[tuple[str, str, int]], queues: Mapping[str, QueueRecord]
) -> dict[str, int]:
    """Return how many slots of each job are beyond the quota of its queue; only those with any."""
    left = {name: one.quota for name, one in queues.items()}
    found = {}
    for name, queue, slots in jobs:
        guaranteed = min(slots, left.get(queue, 0))
        left[queue] = left.get(queue, 0) - guaranteed
        if slots > guaranteed:
            found[name] = slots - guaranteed
    return found


def check_queue(name: str, queue: QueueRecord) -> None:
    if queue.quota < 0:
        raise UsageError(f"the quota of queue {name} is {queue.quota}; it must be 0 or more slots")
    if not 0 < queue.weight <= MAX_WEIGHT:
        raise UsageError(
            f"the weight of queue {name} is {queue.weight:g}; it must be above 0 and at most "
            f"{MAX_WEIGHT:g}"
        )
    if queue.most is not None and queue.most < max(1, queue.quota):
        raise UsageError(
            f"queue {name} would have at most {queue.most} of its quota of {queue.quota}; give it "
            f"at least {counted(max(1, queue.quota), 'slot')}, or lower the quota"
        )


def unknown_queue(cluster: str, queue: str, queues: Collection[str], asks: str = "") -> str:
    known = sorted(queues)
    near = known if len(known) <= FEW else nearest(queue, known)
    has = f"; it has {some(list(near))}" if near else ", and no other"
    hint = "; name one of them by `queue:` in the manifest" if asks else ""
    return f"{cluster} has no queue {queue!r}{asks}{has}{hint}"


def overbooked(queues: Mapping[str, QueueRecord], slots: int) -> str:
    """Return the sentence that the quotas are more than the `slots` there are; "" if not."""
    total = sum(one.quota for one in queues.values())
    if total <= slots:
        return ""
    return (
        f"the quotas of all queues are {counted(total, 'slot')} together, and the cluster has "
        f"{slots}: they are met in proportion"
    )


def _fill(
    given: dict[str, int],
    limits: Mapping[str, int],
    weights: Mapping[str, float],
    bases: Mapping[str, int],
    slots: int,
) -> None:
    left = slots - sum(given.values())

    def level(name: str) -> tuple[float, str]:
        return (given[name] + 1 - bases[name]) / weights[name], name

    waiting = [level(name) for name in given if given[name] < limits[name] and weights[name] > 0]
    heapq.heapify(waiting)
    while left > 0 and waiting:
        name = waiting[0][1]
        given[name] += 1
        left -= 1
        if given[name] < limits[name]:
            heapq.heapreplace(waiting, level(name))
        else:
            heapq.heappop(waiting)


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
    return job.life.submitted_s or job.submitted_s


class _Moments:
    """Moments in time, of which it is counted how many have passed, on average over a time."""

    def __init__(self, moments: Sequence[float]) -> None:
        self._moments = sorted(moments)
        self._sums = [0.0, *accumulate(self._moments)]

    def between(self, first_s: float, last_s: float) -> float:
        return self._until(last_s) - self._until(first_s)

    def _until(self, time_s: float) -> float:
        count = bisect(self._moments, time_s)
        return count * time_s - self._sums[count]


# ------------------------------------------------------------
# Deal out the quota of a queue, in slots, to its jobs that may not be preempted.
#
# Others could not get slots of such jobs back, so together they have at most the quota of their
# queue. `quota_limits` deals it out, to the first job first:
#
# 1. A job that has slots keeps them. If it has lost some, as with a host, it may have others in
#    their place, but only within what is left of the quota. Its fewest slots are never dealt to
#    another.
# 2. A job that waits gets what is left, up to the most that it can use.
# 3. If that is too little for it, nothing is dealt to those that come after it until it has
#    started. So later and smaller jobs, however many come, do not keep it waiting: it starts at the
#    latest when the jobs have ended that had slots, or came before it, when it was submitted. A job
#    whose fewest slots are more than the whole quota holds up no other one.


RIGID = "waits: it may not be preempted, so it gets slots of the quota of queue {queue} only"


@dataclass(frozen=True)
class QuotaRequest:
    name: str  # the name of the job
    size: int  # the number of slots that it has; 0: it waits
    least: int  # the fewest slots with which it may train
    most: int  # the most slots that it can use now; at least `least`
    sizes: Sizes  # the numbers of slots that it may have


def quota_limits(
    queue: str, jobs: Sequence[QuotaRequest], quota: int
) -> tuple[dict[str, int], dict[str, str]]:
    left = max(0, quota - sum(max(one.size, one.least) for one in jobs if one.size))
    limits: dict[str, int] = {}
    reasons: dict[str, str] = {}
    first: QuotaRequest | None = None
    why = RIGID.format(queue=queue)
    for one in jobs:
        own = max(one.size, one.least) if one.size else 0
        most = one.sizes.below(min(one.most, own + left))
        if own:
            limits[one.name] = max(own, most or 0)
            left -= limits[one.name] - own
        elif most is not None:
            limits[one.name] = most
            left -= most
        elif first is not None:
            reasons[one.name] = (
                f"{why}, and those that are left are kept for job {first.name}, which comes before "
                f"it and needs {first.least}"
            )
        else:
            reasons[one.name] = (
                f"{why}, of which {left} of {quota} are left for it, and it needs {one.least}"
            )
            if one.least <= quota:
                first, left = one, 0
    return limits, reasons
