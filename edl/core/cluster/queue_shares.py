"""Divide the slots of a cluster among its queues: quotas first, the rest by weight.

:func:`queue_shares` is a pure function of numbers. The slots are dealt one by one (progressive
filling, which gives weighted max-min fairness):

1. Each queue keeps what cannot be taken from it now, such as the slots of a job that starts.
2. Quotas: each queue gets as many slots as its jobs can use, up to its quota. If the cluster has
   fewer slots than that, they are dealt in proportion to the quotas.
3. Jobs that train: each queue gets as many slots as its jobs need to train on, each with its
   fewest. So a job is halted for another queue's quota, and never for another queue's surplus.
4. Surplus: the slots that are left go to queues whose jobs can use more, in proportion to the
   weights, up to the most that a queue may have.

So an idle quota is lent, and is back with its queue as soon as its jobs can use it.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from edl.core.cluster.records import QueueRecord
from edl.core.plural import counted
from edl.errors import FEW, UsageError, nearest, some

MOST_WEIGHT = 1e6
NO_QUEUE = QueueRecord()  # of jobs whose queue has no record: no quota, and the weight 1


@dataclass(frozen=True)
class QueueRequest:
    """What the jobs of one queue can use."""

    name: str
    usable: int  # the most slots that its jobs can use together
    # its quota, its weight and the most slots that it may have
    record: QueueRecord = field(default_factory=QueueRecord)
    held: int = 0  # the slots that cannot be taken from its jobs now; at most those that they have
    least: int = 0  # the slots without which some of its jobs would be halted that train

    @property
    def limit(self) -> int:
        """The most slots that are any good to the queue."""
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
    """Raise a UsageError if a value of the queue called `name` is not allowed."""
    if queue.quota < 0:
        raise UsageError(f"the quota of queue {name} is {queue.quota}; it must be 0 or more slots")
    if not 0 < queue.weight <= MOST_WEIGHT:
        raise UsageError(
            f"the weight of queue {name} is {queue.weight:g}; it must be above 0 and at most "
            f"{MOST_WEIGHT:g}"
        )
    if queue.most is not None and queue.most < max(1, queue.quota):
        raise UsageError(
            f"queue {name} would have at most {queue.most} of its quota of {queue.quota}; give it "
            f"at least {counted(max(1, queue.quota), 'slot')}, or lower the quota"
        )


def unknown_queue(cluster: str, queue: str, queues: Collection[str], asks: str = "") -> str:
    """Return the sentence that says that a cluster has no such queue, and what to do."""
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
    """Deal the slots that are left one by one, to the queue that has the fewest for its weight."""
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
