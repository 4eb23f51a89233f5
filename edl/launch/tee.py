"""Copy the standard error of a child process unchanged to another file, and keep its last lines.

The main entry is :class:`Tee`.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import IO

from edl.core.host.termination_message import KEPT, best
from edl.launch.line_buffer import as_shown

_CHUNK_BYTES = 1 << 16
_REST_S = 2.0  # for the last output of a child; a process that it started may hold the pipe open


class Tee:
    """A copier, with a thread of its own, that copies `source` to `target` and keeps lines."""

    # It reads on if `target` cannot be written, or the child that writes to `source` would block.

    def __init__(self, source: IO[bytes], target: IO[bytes]) -> None:
        self._source, self._target = source, target
        self._newest: deque[bytes] = deque(maxlen=KEPT)
        self._thread = threading.Thread(target=self._copy, name="edl-stderr", daemon=True)

    def start(self) -> None:
        """Start the thread that copies `source` to `target`; to be called once."""
        self._thread.start()

    def finish(self) -> str:
        """Return the line of the child's output that best explains why the child has ended."""
        self._thread.join(_REST_S)  # a process that the child started may hold the pipe open
        return best(as_shown(line) for line in [*self._newest])

    def _copy(self) -> None:
        rest = b""
        with self._source as source:
            while chunk := source.read1(_CHUNK_BYTES):  # type: ignore[attr-defined]
                with contextlib.suppress(OSError, ValueError):  # the output is not read any more
                    self._target.write(chunk)
                    self._target.flush()
                *lines, rest = (rest + chunk).split(b"\n")
                self._newest.extend(lines)
                rest = rest[-_CHUNK_BYTES:]
        if rest:
            self._newest.append(rest)
