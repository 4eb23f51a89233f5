"""Write what a plan of a cluster changes, in transactions that ZooKeeper takes.

One transaction has all of a plan, or several if it is too large; then the parts of the plan
(:mod:`edl.core.cluster.plan_parts`) are divided among them. A part that is too large by itself is
written with fewer of the paths that its hosts are asked for. If it is too large still, it is left
out, with the orders that follow from it, so that it holds up no other part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from edl.coordination.cluster.store import ClusterStore
from edl.coordination.cluster.writer import (
    MOST_BYTES,
    ClusterWriter,
    allocation_write,
    assigned_write,
    byte_count,
    event_write,
    life_write,
    secret_write,
)
from edl.coordination.election import Write
from edl.core.cluster.plan import ClusterPlan
from edl.core.cluster.plan_events import PlannedEvent, plan_events
from edl.core.cluster.plan_parts import PlanPart, asking_less, plan_parts, without_parts
from edl.errors import some
from edl.scheduler.leader_records import LeaderRecords

TRANSACTION_BYTES = 400_000  # ZooKeeper takes 1 MB, and each write costs more than its values
TRANSACTION_WRITES = 250  # a busy server must answer within a session's time-out

Events = Sequence[PlannedEvent]


class PlanWriter:
    """Writes the plans of a controller that leads, in one term, into the cluster's records."""

    def __init__(
        self, store: ClusterStore, writer: ClusterWriter, say: Callable[[str], None]
    ) -> None:
        self._store = store
        self._writer = writer
        self._say = say
        self._said = ""

    def write(self, read: LeaderRecords, found: ClusterPlan) -> tuple[ClusterPlan, Events] | None:
        """Write the plan `found` and its events; return what was written, None: plan again."""
        events = plan_events(read.view, found)
        fitting, left_out = [], []
        for part in plan_parts(read.view, found):
            writes = _Writes.of(self._of_part(read, found, part, events))
            if writes.size > MOST_BYTES:
                found = self._asking_less(read, found, part, events)
                writes = _Writes.of(self._of_part(read, found, part, events))
            if writes.size > MOST_BYTES:
                left_out.append(part)
            else:
                fitting.append(writes)
        self._tell(left_out)
        if left_out:
            found = without_parts(read.view, found, left_out)
            events = plan_events(read.view, found)
        before = map(_Writes.of, self._of_decision(read, found))
        every = [*before, *fitting, *map(_Writes.of, self._of_others(found, events))]
        if all(self._writer.commit(one) for one in _transactions(every)):
            return found, events
        # A record has changed meanwhile; of several transactions the first ones may be written.
        return None

    def _asking_less(
        self, read: LeaderRecords, found: ClusterPlan, part: PlanPart, events: Events
    ) -> ClusterPlan:
        """Return `found` with so few paths asked of the hosts of `part` that the part fits."""
        without = asking_less(found, part, 0)
        left = MOST_BYTES - byte_count(self._of_part(read, without, part, events))
        return asking_less(found, part, left // max(1, len(part.hosts)))

    def _tell(self, left_out: Sequence[PlanPart]) -> None:
        """Show which parts of a plan are too large to be written, unless that was shown before."""
        sentences = [
            f"cannot write what changes together for {some(part.jobs) or 'no job'} on "
            f"{some(part.hosts) or 'no host'}: it has more than {MOST_BYTES} bytes"
            for part in left_out
        ]
        said = "; ".join(sentences)
        if said and said != self._said:
            self._say(said)
        self._said = said

    def _of_decision(self, read: LeaderRecords, found: ClusterPlan) -> Iterator[list[Write]]:
        """Yield the policy's decision as a list of one write; nothing if `found` keeps the old."""
        if found.allocation is not None:
            version = read.snapshot.allocation_version
            yield [allocation_write(self._store.paths, found.allocation, version)]

    def _of_part(
        self, read: LeaderRecords, found: ClusterPlan, part: PlanPart, events: Events
    ) -> list[Write]:
        """Return the writes of the jobs and hosts of `part`, with the events of these jobs."""
        paths, jobs = self._store.paths, read.job_named
        lives = {name: found.lives[name] for name in part.jobs}
        return [
            *(life_write(paths, jobs[name], life) for name, life in lives.items()),
            # before the job is assigned to hosts, which need its secret
            *(
                secret_write(paths, name)
                for name, life in lives.items()
                if life.run and name not in read.secrets
            ),
            *(
                assigned_write(paths, read.view.host_named[one], found.assigned[one])
                for one in part.hosts
            ),
            *self._of_events(one for one in events if one.job in lives),
        ]

    def _of_others(self, found: ClusterPlan, events: Events) -> Iterator[list[Write]]:
        rest = (one for one in events if one.job not in found.lives)
        return ([one] for one in self._of_events(rest))

    def _of_events(self, events: Iterable[PlannedEvent]) -> Iterator[Write]:
        return (event_write(self._store.paths, self._store.events.new(*one)) for one in events)


class _Writes(NamedTuple):
    """Writes that have to be in one transaction."""

    writes: Sequence[Write]  # the writes, in their order
    size: int  # the bytes of their paths and values

    @classmethod
    def of(cls, writes: Sequence[Write]) -> _Writes:
        return cls(writes, byte_count(writes))


def _transactions(parts: Sequence[_Writes]) -> list[list[Write]]:
    """Return the writes of `parts` as one transaction or, if they are too large, as several."""
    found: list[list[Write]] = [[]]
    size = 0
    for writes, part_size in parts:
        size += part_size
        is_full = len(found[-1]) + len(writes) > TRANSACTION_WRITES
        if found[-1] and (is_full or size > TRANSACTION_BYTES):
            found.append([])
            size = part_size
        found[-1] += writes
    return [one for one in found if one]
