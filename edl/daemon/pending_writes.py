"""Keep a worker's reports of itself (:class:`PendingWrites`) until they are in ZooKeeper."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from edl.coordination.job_store import JobStore
from edl.core.events import Event
from edl.core.job.ending import JobEnd
from edl.core.records import JobState, Member
from edl.daemon.event_log import EventLog
from edl.worker.shared_state import SharedState

logger = logging.getLogger(__name__)


class PendingWrites:
    """The writes of a worker that ZooKeeper lacks: the training thread adds, the daemon writes."""

    def __init__(self, store: JobStore, shared: SharedState) -> None:
        self.events = EventLog(store.events, shared)
        self._store = store
        self._shared = shared
        self._written = threading.Condition()
        self._member: Member | None = None
        self._dirty = False  # the member node is behind self._member
        self._saved: tuple[str, int] | None = None
        self._end: tuple[JobEnd, Event | None] | None = None

    @property
    def member(self) -> Member | None:
        """The newest member record of this worker, written or not; None before `register`."""
        return self._member

    def register(self, member: Member) -> None:
        """Write the member node of this worker for the first time, at once."""
        self._member = member
        self._store.members.put(member)

    def change_member(self, change: Callable[[Member], Member]) -> None:
        with self._written:
            assert self._member is not None
            self._member = change(self._member)
            self._dirty = True

    def put_saved(self, directory: str, step: int) -> None:
        with self._written:
            self._saved = (directory, step)

    def end_job(self, end: JobEnd, event: Event | None) -> None:
        with self._written:
            if self._end is None:  # the first word counts
                self._end = end, event

    def flush(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        with self._written:
            while self._dirty or self._saved or self._end or self._shared.has_events:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._written.wait(left)
        return True

    def write(self, as_member: bool) -> None:
        """Write what is not written yet; without `as_member` a changed member record is dropped."""
        with self._written:
            member, dirty = self._member, self._dirty and as_member
            saved, end = self._saved, self._end
        if dirty and member is not None:
            self._store.members.put(member)
        # If the job goes on without this worker, it may have a later checkpoint.
        if saved is not None:
            self._store.put_saved(*saved, only_later=self._is_left_out())
        self.events.write()
        if end is not None:
            self._conclude(*end)
        with self._written:
            if self._member is member:
                self._dirty = False
            if self._saved is saved:
                self._saved = None
            if self._end is end:
                self._end = None
            self._written.notify_all()

    def remove_member(self) -> None:
        """Remove the member node of this worker and its candidate nodes."""
        if self._member is not None:
            self._store.members.remove(self._member.id, self._member.attempt_id)

    def _conclude(self, end: JobEnd, event: Event | None) -> None:
        """Write how the job ended, unless the job goes on without this worker."""
        if self._is_left_out():
            logger.warning("the job goes on without this worker, which has %s", end.reason)
            return
        stopping = (JobState.STOPPING,) if end.state is JobState.STOPPED else ()
        first = self._store.set_job_state(
            end.state,
            end.reason,
            end.exit_code,
            end.finished_in,
            only_from=(JobState.RUNNING, *stopping),
            event=event,
        )
        if first and event is not None:
            self._shared.on_event(event)

    def _is_left_out(self) -> bool:
        """Read from ZooKeeper whether the job goes on without this worker."""
        _, generation, evicted, *_ = self._store.watch_generation(None)
        own = self._member
        assert own is not None  # it has trained
        if own.id in evicted:
            return True
        return generation is not None and bool(generation.members) and not generation.knows(own.id)
