"""Write the output of a process that must live to a terminal, a pipe or a file that may fail.

The one class is :class:`OutputStream`.
"""

from __future__ import annotations

import errno
import io
import os
import select
from typing import IO

_READABLE_S = 1.0  # for the reader of a full pipe, before the next try
_CLOSED = (errno.EPIPE, errno.EBADF)


class OutputStream(io.TextIOBase):
    """A file to write text to, standard output or standard error, that raises no error."""

    # Closed: further text is dropped. Another error may pass: a line says how many lines are
    # missing.

    def __init__(self, file: IO[str] | None) -> None:
        self._file = file
        # Without the file's buffer, whose lock would be held until the reader of a full pipe reads
        # on.
        self._descriptor = _descriptor(file)
        self._encoding = getattr(file, "encoding", None) or "utf-8"
        self._is_gone = file is None or file.closed
        self._is_terminal = file is not None and not self._is_gone and file.isatty()
        self._left_out = 0  # lines, since the last text that was written
        self._why: Exception | None = None  # the newest error
        self._in_line = False  # the text that was written last ends within a line

    @property
    def encoding(self) -> str:  # type: ignore[override]  # typeshed has it as a variable
        """The encoding of the file. Characters that it does not have are written as "?"."""
        return self._encoding

    def isatty(self) -> bool:
        """Return whether the file was a terminal when this object was made."""
        return self._is_terminal

    def fileno(self) -> int:
        """Return the file descriptor."""
        if self._descriptor is None:
            raise io.UnsupportedOperation("fileno")
        return self._descriptor

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        """Write `text`, unless the file is closed or fails; return its number of characters."""
        if self._is_gone:
            return len(text)
        try:
            if self._left_out:
                begin = "\n" if self._in_line else ""
                lines = f"{self._left_out} lines are" if self._left_out > 1 else "1 line is"
                self._put(f"{begin}edl: {lines} left out here: {self._why}\n")
                self._left_out = 0
            self._put(text)
        except (OSError, ValueError) as error:
            self._is_gone = self._means_closed(error)
            self._left_out += text.count("\n")
            self._why = error
        return len(text)

    def flush(self) -> None:
        """Let a file without a descriptor show what it has; an error is ignored."""
        if self._descriptor is None and self._file is not None and not self._is_gone:
            try:
                self._file.flush()
            except (OSError, ValueError) as error:
                self._is_gone = self._means_closed(error)

    def _put(self, text: str) -> None:
        data = text.encode(self._encoding, errors="replace")
        if self._descriptor is None:
            assert self._file is not None
            self._file.write(data.decode(self._encoding))
            return
        left = memoryview(data)
        while left:
            try:
                written = os.write(self._descriptor, left)
            except BlockingIOError:  # another process has made the pipe or terminal non-blocking
                _wait_for_reader(self._descriptor)
                continue
            self._in_line = left[written - 1] != ord("\n")
            left = left[written:]

    def _means_closed(self, error: OSError | ValueError) -> bool:
        """Return whether `error` of a write says that no later one will succeed."""
        if isinstance(error, OSError) and error.errno is not None:
            hung_up = error.errno == errno.EIO and self._is_terminal
            return hung_up or error.errno in _CLOSED
        return isinstance(error, ValueError)  # of a file object that is closed


def _descriptor(file: IO[str] | None) -> int | None:
    """Return the file descriptor of one of Python's own files; None if `file` has none."""
    # A notebook's file has the descriptor of its server's terminal: it is written as usual.
    if not isinstance(file, io.TextIOWrapper):
        return None
    try:
        return file.fileno()
    except (io.UnsupportedOperation, ValueError):  # no file of the system, in a test; or closed
        return None


def _wait_for_reader(descriptor: int) -> None:
    """Wait until `descriptor` takes more bytes or its reader is gone, at most 1 s."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    poll.poll(_READABLE_S * 1000)
