"""Write a worker's events to the job's log, in order and each once, also if ZooKeeper fails."""

from __future__ import annotations

from edl.coordination.events import EventNodes
from edl.coordination.wire import encode
from edl.core.events import Event
from edl.worker.shared_state import SharedState


class EventLog:
    """The writer of the events in a worker's shared state; only the daemon thread calls it."""

    def __init__(self, events: EventNodes, shared: SharedState) -> None:
        self._events = events
        self._shared = shared
        self._last = -1  # number of the newest event that we know to be written
        self._unsure = False  # whether the first event of the shared state was written

    def write(self) -> None:
        """Write all queued events to ZooKeeper; one whose write failed stays in the queue."""
        while (event := self._shared.next_event()) is not None:
            # A write that failed may have been carried out.
            if not (self._unsure and self._is_there(event)):
                self._unsure = True
                self._last = self._events.add(event)
            self._unsure = False
            self._shared.event_is_written()

    def _is_there(self, event: Event) -> bool:
        # An event that this edl cannot read, because a newer one has written it, is another one.
        data = encode(event.to_json())
        logged = self._events.read_known(self._last)
        return any(encode(e.to_json()) == data for _, e in logged)
