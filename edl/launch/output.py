"""What an agent shows: its workers' output line by line with a prefix, and its own notes.

A worker writes to a log file, not to a pipe: it must be able to go on when the agent is gone.
The agent follows the files, and leaves out Horovod's errors of rings that broke. Nothing here
raises when the terminal or the pipe is gone.
"""

from __future__ import annotations

import os
import sys
import threading
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
            lines += [as_shown(line) for line in complete]
        if finish and self._rest:
            lines.append(as_shown(self._rest))
            self._rest = b""
        self.newest.extend(lines)
        return lines

    def close(self) -> None:
        self._file.close()


class Output:
    """The agent's standard output and error.

    Workers' lines go to standard output, notes to standard error. On a terminal both go
    through ``console``, in colour, above a line that ``live`` renders anew four times a second.
    """

    def __init__(self, console: Console, live: Callable[[], Text] | None = None) -> None:
        self._console = console
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
                get_renderable=self._render,
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
                    self._show(tail, tail.lines(finish=False))

    def _show(self, tail: _Tail, found: list[str]) -> None:
        lines = [line for line in found if not is_of_horovod(line)]
        if not lines:
            return
        if not self._console.is_terminal:
            text = "".join(f"{tail.prefix} {line}\n" for line in lines)
            self._guard(lambda: self._write(text))
            return
        colour = _COLOURS[tail.slot % len(_COLOURS)]
        block = Text("\n").join(
            Text.assemble((tail.prefix, colour), " ", Text.from_ansi(line)) for line in lines
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


def as_shown(line: bytes) -> str:
    """A line as a terminal would show it: the last state of a progress bar."""
    return line.decode(errors="replace").rstrip("\r").rsplit("\r", 1)[-1]
