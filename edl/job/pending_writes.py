"""Keep a worker's reports of itself (:class:`PendingWrites`) until they are in ZooKeeper."""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from edl.events import Event
from edl.host.process import FORMER_LOG
from edl.http.client import END_PATH, tell_end
from edl.http.server import DaemonServer, HttpRequest
from edl.job.run import JobEnd
from edl.records import Generation, JobState, Member
from edl.worker.shared_state import SharedState
from edl.zookeeper.events import EventNodes
from edl.zookeeper.reads import encode
from edl.zookeeper.store import JobStore

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

logger = logging.getLogger(__name__)


class EventLog:
    def __init__(self, events: EventNodes, shared: SharedState) -> None:
        self._events = events
        self._shared = shared
        self._last = -1  # number of the newest event that we know to be written
        self._unsure = False  # whether the first event of the shared state was written

    def write(self) -> None:
        """Write all queued events to ZooKeeper; one whose write failed stays in the queue."""
        while (event := self._shared.next_event()) is not None:
            # A write that failed may have been carried out. An event that this edl cannot read,
            # because a newer one has written it, is another one.
            data = encode(event.to_json())
            logged = self._events.read_known(self._last) if self._unsure else ()
            if not any(encode(written.to_json()) == data for _, written in logged):
                self._unsure = True
                self._last = self._events.add(event)
            self._unsure = False
            self._shared.event_is_written()


# ------------------------------------------------------------
# Keep a worker's output in a file of bounded size: not in a pipe of its agent, so that it can go on
# when the agent is gone. Where `print` would raise because the disk is full, the line is left out
# instead.


_NEXT = ".next"  # of the one that takes its place in a moment
_STREAMS = {"stdout": 1, "stderr": 2}
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.ESTALE)


class OwnLog:
    """The log file that the agent has opened as descriptors 1 and 2; any thread may write."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._left_out = 0  # bytes, in the outage that lasts
        self._lost = 0  # bytes, in outages that are over and that nobody has asked for
        self._failure: str | None = None  # of an outage that nobody has asked for

    def guard(self) -> None:
        for name, descriptor in _STREAMS.items():
            stream = getattr(sys, name)
            if isinstance(stream, io.TextIOWrapper) and self._is_own(descriptor):
                with contextlib.suppress(OSError):
                    stream.flush()
                guarded = io.TextIOWrapper(
                    _Lossy(descriptor, self),
                    encoding=stream.encoding,
                    errors=stream.errors,
                    newline="\n",
                    write_through=True,
                )
                setattr(sys, name, guarded)
                setattr(sys, f"__{name}__", guarded)

    def rotate(self, max_bytes: int) -> None:
        """Begin a new file if this one has `max_bytes` or more; keep one former file."""
        if not self._is_own(1) or os.fstat(1).st_size < max_bytes:
            return
        following = self.path + _NEXT
        with contextlib.suppress(OSError):  # no room: the file that is there goes on
            fresh = os.open(
                following, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
            )
            # Before the renames: whoever finds a new file knows that nothing is added to the old.
            for descriptor in _STREAMS.values():
                if self._is_own(descriptor):
                    os.dup2(fresh, descriptor)
            os.close(fresh)
            os.rename(self.path, self.path + FORMER_LOG)
            os.rename(following, self.path)

    def take_failure(self) -> str | None:
        """Return once why lines are missing from the file: the first error, and the path."""
        with self._lock:
            failure, self._failure = self._failure, None
            return failure

    def failed(self, left_out: int, error: OSError) -> None:
        with self._lock:
            if not self._left_out:
                self._failure = f"{error.strerror}: {self.path}"
            self._left_out += left_out

    def notice(self) -> bytes:
        """Return the line for the log that says how many bytes are left out before it, if any."""
        with self._lock:
            missing = self._left_out
        return f"\nedl: {missing} bytes are left out here\n".encode() if missing else b""

    def resumed(self) -> None:
        """Begin to count anew: `notice` and a line after it were written."""
        with self._lock:
            self._lost, self._left_out = self._lost + self._left_out, 0

    def take_lost(self) -> int:
        """Return once how many bytes were left out until the file could be written again."""
        with self._lock:
            lost, self._lost = self._lost, 0
            return lost

    def _is_own(self, descriptor: int) -> bool:
        """Return whether `descriptor` is open on this file; a script may have redirected it."""
        try:
            return os.path.samestat(os.fstat(descriptor), Path(self.path).stat())
        except OSError:
            return False


class _Lossy(io.FileIO):
    def __init__(self, descriptor: int, log: OwnLog) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self._log = log

    def write(self, data: ReadableBuffer) -> int:
        left = memoryview(data).cast("B")
        length = len(left)
        try:
            notice = self._log.notice()
            if notice:
                super().write(notice)
            while left:
                left = left[super().write(left) :]
            if notice:
                self._log.resumed()
        except OSError as error:
            if error.errno not in _OF_THE_DISK:
                raise
            self._log.failed(len(left), error)
        return length


# ------------------------------------------------------------
# End a job in order while ZooKeeper is away: the agent of `edl run` tells a worker on its own port
# (`POST /end`, signed), which tells the others of its ring. Each worker's step record says whether
# it knows of the end, and all leave after the first step in which every record says so, as when the
# leader ends the job.


class JobEndEndpoint:
    # The server's thread calls `announce`, with a generation without members, which means the end.
    def __init__(self, key: str, announce: Callable[[Generation], None]) -> None:
        self._key = key
        self._announce = announce
        self._lock = threading.Lock()
        self.current: Generation | None = None  # the daemon sets it
        self._told = False

    def add_to(self, server: DaemonServer) -> None:
        server.add_route(END_PATH, self._answer, changes=True)

    def _answer(self, request: HttpRequest) -> tuple[int, bytes]:
        """Announce the end and pass it on, at the first request; its body is the reason."""
        if request.method != "POST":
            return 405, b""
        current = self.current
        if current is None or not current.members:
            return 409, b"in no ring"
        reason = request.body.decode(errors="replace")
        with self._lock:
            first, self._told = not self._told, True
        if first:
            self._announce(current.as_end(reason))
            # Not on the server's loop, which would wait for others that tell this worker.
            args = self._key, current.members, reason
            threading.Thread(target=tell_end, args=args, name="edl-end", daemon=True).start()
        return 200, b""


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
        _, generation, evicted, *_ = self._store.watch_generation(None)
        own = self._member
        assert own is not None  # it has trained
        if own.id in evicted:
            return True
        return generation is not None and bool(generation.members) and not generation.knows(own.id)
