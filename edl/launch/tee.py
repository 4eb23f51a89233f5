"""The standard error of a child, passed on as it is, with its last lines kept."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from typing import IO

from edl.core.host.termination_message import KEPT, best
from edl.launch.output import as_shown

_CHUNK_BYTES = 1 << 16
_REST_S = 2.0  # for what a child wrote last; what it has started may hold the pipe open


class Tee:
    """Copies ``source`` to ``target`` from :meth:`start` on, also when nobody reads that."""

    def __init__(self, source: IO[bytes], target: IO[bytes]) -> None:
        self._source, self._target = source, target
        self._newest: deque[bytes] = deque(maxlen=KEPT)
        self._thread = threading.Thread(target=self._copy, name="edl-stderr", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> str:
        """The child has ended: the line of its output that says best why."""
        self._thread.join(_REST_S)
        return best(as_shown(line) for line in [*self._newest])

    def _copy(self) -> None:
        rest = b""
        with self._source as source:
            while chunk := source.read1(_CHUNK_BYTES):  # type: ignore[attr-defined]
                with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
                    self._target.write(chunk)
                    self._target.flush()
                *lines, rest = (rest + chunk).split(b"\n")
                self._newest.extend(lines)
                rest = rest[-_CHUNK_BYTES:]
        if rest:
            self._newest.append(rest)
