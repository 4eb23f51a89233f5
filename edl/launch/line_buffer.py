"""Split a worker's log into lines as a terminal would show them, a progress bar included."""

from __future__ import annotations

import time


class LineBuffer:
    """A splitter of a log into lines; of a progress bar, it keeps the newest state only."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._rest = b""
        self._bar_shown = ("", time.monotonic())

    def add(self, content: bytes) -> list[str]:
        """Return the lines that `content`, the next part of the log, completes, in order."""
        *complete, rest = (self._rest + content).split(b"\n")
        self._rest = _newest_state(rest)
        if len(self._rest) > self._most_bytes:
            complete.append(self._rest)
            self._rest = b""
        return [as_shown(line) for line in complete]

    def finish(self) -> list[str]:
        """Return a list with the last line if it is not complete, and forget it."""
        rest, self._rest = self._rest, b""
        return [as_shown(rest)] if rest else []

    @property
    def bar(self) -> str:
        """The newest state of the progress bar; empty if the last line, if any, is no such bar."""
        return as_shown(self._rest) if b"\r" in self._rest.rstrip(b"\r") else ""

    def due_bar(self, period_s: float) -> list[str]:
        """Return a list with the newest state of the progress bar, if it is due; else empty."""
        shown, at = self._bar_shown
        now, bar = time.monotonic(), self.bar
        if now - at < period_s or bar in ("", shown):
            return []
        self._bar_shown = (bar, now)
        return [bar]


def as_shown(line: bytes) -> str:
    """Return a line of a log as text, as a terminal would show it."""
    return line.decode(errors="replace").rstrip("\r").rsplit("\r", 1)[-1]


def _newest_state(line: bytes) -> bytes:
    before, _, newest = line.rstrip(b"\r").rpartition(b"\r")
    return b"\r" + newest + line[len(line.rstrip(b"\r")) :] if before else line
