"""Keep a worker's standard output and error in a file of bounded size; survive a full disk.

A worker writes to a file, not to a pipe of its agent, so that it can go on when the agent is gone.
It begins a new file when the old one has reached its limit. Where ``print`` would raise because the
disk is full, the line is left out instead. :class:`OwnLog` stands for the file.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from edl.core.host.process import FORMER_LOG

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_NEXT = ".next"  # of the one that takes its place in a moment
_STREAMS = {"stdout": 1, "stderr": 2}
_OF_THE_DISK = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EIO,
    errno.EROFS,
    errno.ESTALE,
)


class OwnLog:
    """The log file that the agent has opened as descriptors 1 and 2; any thread may write."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._left_out = 0  # bytes, in the outage that lasts
        self._lost = 0  # bytes, in outages that are over and that nobody has asked for
        self._failure: str | None = None  # of an outage that nobody has asked for

    def guard(self) -> None:
        """Replace `sys.stdout` and `sys.stderr` by streams that no error of the disk stops."""
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

    def look(self, most_bytes: int) -> str | None:
        self.rotate(most_bytes)
        return self.take_failure()

    def rotate(self, most_bytes: int) -> None:
        """Begin a new file if this one has `most_bytes` or more; keep one former file."""
        if not self._is_own(1) or os.fstat(1).st_size < most_bytes:
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
    """A raw stream to a file that leaves out what the disk does not take."""

    def __init__(self, descriptor: int, log: OwnLog) -> None:
        super().__init__(descriptor, "wb", closefd=False)
        self._log = log

    def write(self, data: ReadableBuffer) -> int:
        """Write `data` as far as the disk takes it, and return the length of all of it."""
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
