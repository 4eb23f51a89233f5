"""What a worker wants known of itself, until ZooKeeper has it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from edl.coordination.job_store import JobStore
from edl.core.events import Event
from edl.core.records import JobEnd, Member
from edl.daemon.event_log import EventLog
from edl.worker.shared_state import SharedState

logger = logging.getLogger(__name__)


class PendingWrites:
    """The member node, a checkpoint, the end of the job, and the events of the shared state.

    The training thread changes them; the daemon thread writes them, again and again while
    ZooKeeper is away.
    """

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
        """This worker as it wants to be known; None before :meth:`register`."""
        return self._member

    def register(self, member: Member) -> None:
        """Write the member node for the first time.

        Raises:
            CoordinationError: as :meth:`edl.coordination.registrations.MemberNodes.put`.
        """
        self._member = member
        self._store.members.put(member)

    def change_member(self, change: Callable[[Member], Member]) -> None:
        """The member record is to be ``change(member)``."""
        with self._written:
            assert self._member is not None
            self._member = change(self._member)
            self._dirty = True

    def put_saved(self, directory: str, step: int) -> None:
        """A checkpoint of ``step`` is in ``directory``."""
        with self._written:
            self._saved = (directory, step)

    def end_job(self, end: JobEnd, event: Event | None) -> None:
        """The job has ended; ``event`` is logged if nobody has said so before."""
        with self._written:
            if self._end is None:  # the first word counts
                self._end = end, event

    def flush(self, timeout_s: float) -> bool:
        """Wait until all is written; False at the deadline."""
        deadline = time.monotonic() + timeout_s
        with self._written:
            while self._dirty or self._saved or self._end or self._shared.has_events:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._written.wait(left)
        return True

    def write(self, as_member: bool) -> None:
        """Write what is not written yet; without ``as_member`` not the member node.

        Raises:
            UnknownJob: the job is gone.
            CoordinationError: ZooKeeper is away; call it again.
        """
        with self._written:
            member, dirty = self._member, self._dirty and as_member
            saved, end = self._saved, self._end
        if dirty and member is not None:
            self._store.members.put(member)
        if saved is not None:
            self._store.put_saved(*saved)
        if end is not None:
            self._conclude(*end)
        self.events.write()
        with self._written:
            if self._member is member:
                self._dirty = False
            if self._saved is saved:
                self._saved = None
            if self._end is end:
                self._end = None
            self._written.notify_all()

    def remove_member(self) -> None:
        """Remove the member node."""
        if self._member is not None:
            self._store.members.remove(self._member.id)

    def _conclude(self, end: JobEnd, event: Event | None) -> None:
        """Say how the job has ended, unless it goes on without this worker.

        Its whole ring may have been cut off, and trained on.
        """
        _, generation, evicted, *_ = self._store.watch_generation(None)
        own = self._member
        assert own is not None  # it has trained
        goes_on = generation is not None and generation.members and not generation.knows(own.id)
        if goes_on or own.id in evicted:
            logger.warning("the job goes on without this worker, which has %s", end.reason)
            return
        first = self._store.set_job_state(end.state, end.reason, end.exit_code, end.finished_in)
        if first and event is not None:
            self._shared.log(event)
