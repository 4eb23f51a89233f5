"""Write a worker's events to the job's log, in order and each once, also if ZooKeeper fails.

:meth:`EventLog.write` does it.
"""

from __future__ import annotations

from edl.coordination.events import EventNodes
from edl.coordination.wire import encode
from edl.core.events import Event
from edl.worker.shared_state import SharedState


class EventLog:
    """The writer of the events that are queued in a worker's shared state: :meth:`write`.

    Only the daemon thread calls it.

    Args:
        events: The event log of the job.
        shared: The shared state, which holds the events until they are written.
    """

    def __init__(self, events: EventNodes, shared: SharedState) -> None:
        self._events = events
        self._shared = shared
        self._last = -1  # number of the newest event that we know to be written
        self._unsure = False  # whether the first event of the shared state was written

    def write(self) -> None:
        """Write all queued events to ZooKeeper, the oldest first, before this method returns.

        An event whose write failed stays in the queue. The next call first looks whether it was
        written after all, so it is not written twice.

        Raises:
            UnknownJob: the job is gone.
            CoordinationError: ZooKeeper is away; call this method again.
        """
        while (event := self._shared.next_event()) is not None:
            if not (self._unsure and self._is_there(event)):
                self._unsure = True
                self._last = self._events.add(event)
            self._unsure = False
            self._shared.event_is_written()

    def _is_there(self, event: Event) -> bool:
        """Return whether the job's log has an event equal to ``event``.

        Only events after the last one that this object has written are searched. An event that this
        edl cannot read, because a newer one has written it, is another one.
        """
        data = encode(event.to_json())
        logged = self._events.read_known(self._last)
        return any(encode(e.to_json()) == data for _, e in logged)
