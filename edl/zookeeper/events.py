"""Read and write the event log of a job (:class:`EventNodes`) or of a cluster.

The events are sequential nodes, so ZooKeeper gives them their order, not the clock of a host.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

from kazoo.exceptions import NoNodeError

from edl.errors import CoordinationError
from edl.events import Event
from edl.record import Record
from edl.zookeeper.nodes import JobNodes, Nodes, first_of
from edl.zookeeper.paths import sequence
from edl.zookeeper.reads import (
    OnChange,
    Read,
    children,
    decode,
    delete_node,
    encode,
    get,
    ignore_changes,
)

OnUnreadable = Callable[[int, str], None]
"""A function that is told the number of an event that cannot be read, and why."""


def leave_out(number: int, why: str) -> None:
    """Do nothing: as `OnUnreadable` it leaves out events that cannot be read, unsaid."""


_AT_ONCE = 500  # nodes read or removed in one go
E = TypeVar("E", bound=Record)


class EventLogNodes(Generic[E]):
    """The event log of one job or cluster; events are numbered from 0 (see `EventNodes`)."""

    def __init__(self, nodes: Nodes[Any], kind: type[E]) -> None:
        self._nodes = nodes
        self._kind = kind

    def add(self, event: E) -> int:
        """Append `event` to the log, and return its number, which no other event of the log has."""
        data, parent = encode(event.to_json()), self._nodes.paths.events
        try:
            path: str = self._nodes.session.call(
                "write an event", lambda c: c.create_async(f"{parent}/e-", data, sequence=True)
            )
        except NoNodeError:
            raise self._nodes.unknown() from None
        return self._first() + sequence(path)

    def read(self, after: int = -1) -> list[tuple[int, E]]:
        """Return the events with a number above `after`, as (number, event), oldest first."""
        return self._read(after, None)

    def read_known(
        self, after: int = -1, unreadable: OnUnreadable = leave_out
    ) -> list[tuple[int, E]]:
        """Return what `read` returns, without events that only a newer edl can read."""
        return self._read(after, unreadable)

    def _read(self, after: int, unreadable: OnUnreadable | None) -> list[tuple[int, E]]:
        session, paths = self._nodes.session, self._nodes.paths
        names, counted = session.read_all("read events", [children(paths.events), self._counter])
        if names is None:
            raise self._nodes.unknown()
        first = first_of(paths.events, counted)
        nodes = [paths.event(n) for n in sorted(map(sequence, names)) if first + n > after]
        found: list[tuple[int, E]] = []
        for start in range(0, len(nodes), _AT_ONCE):
            part = nodes[start : start + _AT_ONCE]
            answers = session.read_all("read events", [get(path) for path in part])
            for path, answer in zip(part, answers, strict=True):
                if answer is None:
                    continue
                number = first + sequence(path)
                try:
                    found.append((number, self._kind.from_json(decode(path, answer[0]))))
                except CoordinationError as error:
                    if unreadable is None:
                        raise
                    unreadable(number, str(error))
        return found

    def newest(self, count: int, wake: OnChange) -> list[E]:
        """Return the `count` newest events, oldest first, without those that cannot be read."""
        session, paths = self._nodes.session, self._nodes.paths
        names = session.read_all("read events", [children(paths.events, wake)])[0] or ()
        nodes = [paths.event(number) for number in sorted(map(sequence, names))[-count:]]
        answers = session.read_all("read events", [get(path, ignore_changes) for path in nodes])
        found = []
        for path, answer in zip(nodes, answers, strict=True):
            if answer is not None:
                with suppress(CoordinationError):  # an event of a newer edl
                    found.append(self._kind.from_json(decode(path, answer[0])))
        return found

    @property
    def _counter(self) -> Read:
        return get(self._nodes.paths.events, ignore_changes)

    def _first(self) -> int:
        """Return the number at which the log begins (mostly 0), also if that event is gone."""
        paths = self._nodes.paths
        return first_of(paths.events, self._nodes.read(self._counter)[0])

    def trim(self, keep: int, within_s: float = math.inf) -> int:
        session, paths = self._nodes.session, self._nodes.paths
        names = session.read_all("trim events", [children(paths.events)])[0] or ()
        numbers = sorted(map(sequence, names))
        doomed = [paths.event(number) for number in numbers[: max(0, len(numbers) - keep)]]
        deadline_s, removed = time.monotonic() + within_s, 0
        # At least one part is removed.
        while removed < len(doomed) and (not removed or time.monotonic() < deadline_s):
            part = doomed[removed : removed + _AT_ONCE]
            session.read_all("trim events", [delete_node(path) for path in part])
            removed += len(part)
        return removed


class EventNodes(EventLogNodes[Event]):
    # In a job that was written again after ZooKeeper had lost it, the numbers begin at a multiple
    # of `job_copy.NUMBERS`, so that none is used twice.

    def __init__(self, nodes: JobNodes) -> None:
        super().__init__(nodes, Event)

    def newest_step(self) -> int:
        session, paths = self._nodes.session, self._nodes.paths
        names = session.read_all("read the newest event", [children(paths.events)])[0]
        if not names:
            return 0
        path = paths.event(max(map(sequence, names)))
        answer = session.read_all("read the newest event", [get(path)])[0]
        return Event.from_json(decode(path, answer[0])).step if answer is not None else 0
