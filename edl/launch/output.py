"""What an agent shows: its workers' output line by line with a prefix, and its own notes.

A worker writes to a log file, not to a pipe: it must be able to go on when the agent is gone.
The agent follows the files, and leaves out Horovod's errors of rings that broke. Nothing here
raises when the terminal or the pipe is gone.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from edl.core.host.last_line import KEPT, best, is_of_horovod

_POLL_S = 0.05
_CHUNK_BYTES = 1 << 16
_LINE_BYTES = 1 << 16  # a longer line is shown in pieces
_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green")


class _Tail:
    """Follows one log file."""

    def __init__(self, path: Path, slot: int, from_now: bool) -> None:
        self.slot = slot
        self.prefix = f"[slot {slot}]"
        self.newest: deque[str] = deque(maxlen=KEPT)
        self.bar_shown = ("", time.monotonic())
        self._file = path.open("rb")
        if from_now:
            self._file.seek(0, os.SEEK_END)
        self._rest = b""

    def lines(self, finish: bool) -> list[str]:
        """The lines that are complete by now; with ``finish`` also what is left."""
        lines = []
        while chunk := self._file.read(_CHUNK_BYTES):
            *complete, self._rest = (self._rest + chunk).split(b"\n")
            if len(self._rest) > _LINE_BYTES:
                complete.append(self._rest)
                self._rest = b""
            self._rest = _newest_state(self._rest)
            lines += [as_shown(line) for line in complete]
        if finish and self._rest:
            lines.append(as_shown(self._rest))
            self._rest = b""
        self.newest.extend(lines)
        return lines

    @property
    def bar(self) -> str:
        """A progress bar as it is now; empty without one, and at its end, which is a line."""
        return as_shown(self._rest) if b"\r" in self._rest.rstrip(b"\r") else ""

    def close(self) -> None:
        self._file.close()


class Output:
    """The agent's standard output and error.

    Workers' lines go to standard output, notes to standard error. On a terminal both go
    through ``console``, in colour, above progress bars and a line that ``live`` renders, which are
    drawn anew four times a second. Elsewhere a progress bar is a line, every ``bar_s`` seconds.
    """

    def __init__(
        self, console: Console, live: Callable[[], Text] | None = None, bar_s: float = 10.0
    ) -> None:
        self._console = console
        self._bar_s = bar_s
        self._render = live
        self._live: Live | None = None
        self._tails: dict[str, _Tail] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._gone = False

    def __enter__(self) -> Self:
        if self._render is not None and self._console.is_terminal:
            self._live = Live(
                get_renderable=self._below,
                console=self._console,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        self._thread = threading.Thread(target=self._follow, name="edl-output", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(5.0)
        for launch in list(self._tails):
            self.finish(launch)
        if self._live is not None:
            self._guard(self._live.stop)

    def follow(self, launch: str, path: Path, slot: int, from_now: bool = False) -> None:
        """Show what appears in the log of a start of a worker, or (``from_now``) what comes."""
        with self._lock:
            self._tails[launch] = _Tail(path, slot, from_now)

    def name(self, launch: str, name: str) -> None:
        """From now on its lines begin with ``[name]``."""
        with self._lock:
            if launch in self._tails:
                self._tails[launch].prefix = f"[{name}]"

    def finish(self, launch: str) -> str:
        """Show the rest of the log of a worker that has exited; the line that says best why."""
        with self._lock:
            tail = self._tails.pop(launch, None)
            if tail is None:
                return ""
            self._show(tail, tail.lines(finish=True))
            tail.close()
            return best(tail.newest)

    def note(self, text: str) -> None:
        """A line of the agent itself."""
        with self._lock:
            if self._console.is_terminal:
                line = Text(f"edl: {text}", style="bold")
                self._guard(lambda: self._console.print(line, soft_wrap=True))
            else:
                self._guard(lambda: print(f"edl: {text}", file=sys.stderr, flush=True))

    def _follow(self) -> None:
        while not self._stop.wait(_POLL_S):
            with self._lock:
                for tail in self._tails.values():
                    self._show(tail, tail.lines(finish=False) + self._due_bar(tail))

    def _due_bar(self, tail: _Tail) -> list[str]:
        """The worker's progress bar as a line, now and then: nobody would see it before its end."""
        shown, at = tail.bar_shown
        now = time.monotonic()
        if self._console.is_terminal or now - at < self._bar_s or tail.bar in ("", shown):
            return []
        tail.bar_shown = (tail.bar, now)
        return [tail.bar]

    def _below(self) -> Text:
        """What is drawn anew below the lines: progress bars, and how far the job is."""
        assert self._render is not None
        bars = [
            Text.assemble((tail.prefix, _colour(tail)), " ", Text.from_ansi(tail.bar))
            for tail in list(self._tails.values())
            if tail.bar
        ]
        return Text("\n").join([*bars, self._render()])

    def _show(self, tail: _Tail, found: list[str]) -> None:
        lines = [line for line in found if not is_of_horovod(line)]
        if not lines:
            return
        if not self._console.is_terminal:
            text = "".join(f"{tail.prefix} {line}\n" for line in lines)
            self._guard(lambda: self._write(text))
            return
        block = Text("\n").join(
            Text.assemble((tail.prefix, _colour(tail)), " ", Text.from_ansi(line)) for line in lines
        )
        self._guard(lambda: self._console.print(block, soft_wrap=True))

    def _write(self, text: str) -> None:
        self._console.file.write(text)
        self._console.file.flush()

    def _guard(self, write: Callable[[], None]) -> None:
        """Write, or stop writing for good when nobody listens any more."""
        if self._gone:
            return
        try:
            write()
        except (OSError, ValueError):  # a broken pipe, a closed terminal, a closed file
            self._gone = True


def _colour(tail: _Tail) -> str:
    return _COLOURS[tail.slot % len(_COLOURS)]


def _newest_state(line: bytes) -> bytes:
    """A line that is not complete, without the states of a progress bar that are gone."""
    before, _, newest = line.rstrip(b"\r").rpartition(b"\r")
    return b"\r" + newest + line[len(line.rstrip(b"\r")) :] if before else line


def as_shown(line: bytes) -> str:
    """A line as a terminal would show it: the last state of a progress bar."""
    return line.decode(errors="replace").rstrip("\r").rsplit("\r", 1)[-1]
