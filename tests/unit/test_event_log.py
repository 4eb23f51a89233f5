"""Events are written in order and once, though ZooKeeper fails; none is there."""

from __future__ import annotations

import pytest

from edl.errors import CoordinationError
from edl.events import Event, EvictedDetails
from edl.job.pending_writes import EventLog
from edl.worker.shared_state import SharedState
from edl.zookeeper.events import EventNodes, OnUnreadable, leave_out

NEWER = Event(0.0, 0, 9, "so", EvictedDetails("w9"))  # stands for one that cannot be read
EVENTS = [Event(float(n), n, 9, "so", EvictedDetails(f"w{n}")) for n in range(4)]


class Events(EventNodes):
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

    def read_known(
        self, after: int = -1, unreadable: OnUnreadable = leave_out
    ) -> list[tuple[int, Event]]:
        logged = list(enumerate(self.log))[after + 1 :]
        for number, event in logged:
            if event is NEWER:
                unreadable(number, "a kind of a newer edl")
        return [(number, event) for number, event in logged if event is not NEWER]


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


def test_an_event_of_a_newer_edl_is_passed_over() -> None:
    events, shared = Events(set(), {1}), SharedState()
    log = EventLog(events, shared)
    shared.log(EVENTS[0])
    with pytest.raises(CoordinationError):
        log.write()
    events.log.append(NEWER)
    log.write()
    assert events.log == [EVENTS[0], NEWER]
