"""Events are written in order and once, though ZooKeeper fails; none is there."""

from __future__ import annotations

import pytest

from edl.coordination.events import EventNodes
from edl.core.events import Event, EvictedDetails
from edl.daemon.event_log import EventLog
from edl.errors import CoordinationError
from edl.worker.shared_state import SharedState

EVENTS = [Event(float(n), n, 9, "so", EvictedDetails(f"w{n}")) for n in range(4)]


class Events(EventNodes):
    """Fails at the writes ``lost`` (nothing is written) and ``deaf`` (but it is written)."""

    def __init__(self, lost: set[int], deaf: set[int]) -> None:
        self.lost, self.deaf = lost, deaf
        self.calls = 0
        self.log: list[Event] = []

    def add(self, event: Event) -> int:
        self.calls += 1
        if self.calls not in self.lost:
            self.log.append(event)
        if self.calls in self.lost | self.deaf:
            raise CoordinationError("ZooKeeper is away")
        return len(self.log) - 1

    def read(self, after: int = -1) -> list[tuple[int, Event]]:
        return list(enumerate(self.log))[after + 1 :]


@pytest.mark.parametrize(
    ("lost", "deaf"), [(set(), set()), ({2}, set()), (set(), {1}), ({3}, {2}), ({1, 2}, {3, 4})]
)
def test_all_are_written_in_order_and_once(lost: set[int], deaf: set[int]) -> None:
    events, shared = Events(lost, deaf), SharedState()
    log = EventLog(events, shared)
    for event in EVENTS:
        shared.log(event)
    for _ in lost | deaf:
        with pytest.raises(CoordinationError):
            log.write()
        assert shared.has_events
    log.write()
    assert events.log == EVENTS
    assert not shared.has_events
