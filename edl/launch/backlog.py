"""Keep the lines of a process that wait until somebody reads its output, within a bound."""

from __future__ import annotations

import threading
from collections import deque
from typing import Generic, TypeVar

KEPT = 1000  # lines that wait, of which the newest are kept

T = TypeVar("T")


class Backlog(Generic[T]):
    """A queue of lines for one writer, which drops the oldest; any thread or handler may put."""

    def __init__(self) -> None:
        self._lines: deque[T] = deque(maxlen=KEPT)
        self._dropped = 0
        self._lock = threading.RLock()  # a signal's handler may run within put()

    def __len__(self) -> int:
        return len(self._lines)

    def put(self, line: T) -> None:
        """Add `line`; if 1,000 lines (`KEPT`) wait already, the oldest one is dropped."""
        with self._lock:
            self._dropped += len(self._lines) == KEPT
            self._lines.append(line)

    def take(self) -> tuple[str, list[T]]:
        """Remove and return all lines that wait, the oldest first."""
        with self._lock:
            dropped, lines = self._dropped, list(self._lines)
            self._dropped = 0
            self._lines.clear()
        what = f"{dropped} lines are" if dropped > 1 else "1 line is"
        said = f"edl: {what} left out here, which nobody has read in time" if dropped else ""
        return said, lines
