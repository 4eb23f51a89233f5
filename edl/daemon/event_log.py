"""A worker's events reach the job's log in order, each once, however often ZooKeeper fails."""

from __future__ import annotations

from edl.coordination.events import EventNodes
from edl.coordination.wire import encode
from edl.core.events import Event
from edl.worker.shared_state import SharedState


class EventLog:
    """Writes what is in the shared state. Only the daemon thread calls it."""

    def __init__(self, events: EventNodes, shared: SharedState) -> None:
        self._events = events
        self._shared = shared
        self._last = -1  # number of the newest event that we know to be written
        self._unsure = False  # whether the first event of the shared state was written

    def write(self) -> None:
        """Write all events; those that are not written stay in the shared state.

        Raises:
            UnknownJob: the job is gone.
            CoordinationError: ZooKeeper is away; call it again.
        """
        while (event := self._shared.next_event()) is not None:
            if not (self._unsure and self._is_there(event)):
                self._unsure = True
                self._last = self._events.add(event)
            self._unsure = False
            self._shared.event_is_written()

    def _is_there(self, event: Event) -> bool:
        data = encode(event.to_json())
        return any(encode(e.to_json()) == data for _, e in self._events.read(self._last))
