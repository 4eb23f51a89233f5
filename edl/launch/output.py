"""Show the output of an agent: its workers' lines, each with a prefix, and the agent's own lines.

A worker writes to a log file, not to a pipe, so that it can go on when the agent has died. The
agent reads the log files, and leaves out the errors and warnings of Horovod's C++ code, which come
when a ring breaks. Only one thread writes lines (a thread of rich draws the progress bars on a
terminal), and no other thread waits for it. So a terminal or pipe that nobody reads (``edl run |
less``, Ctrl-S) delays no decision of the agent. While it is not read, the workers' lines wait in
their files, and the newest 1,000 of the agent's own lines in memory. The main entry is
:class:`Output`: its methods raise no error when the terminal or the pipe is closed.
"""

from __future__ import annotations

import logging
import sys
import textwrap
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, NamedTuple, Self, cast

from rich.console import Console
from rich.live import Live
from rich.text import Text

from edl.core.host.termination_message import KEPT, best, is_of_horovod
from edl.launch.backlog import Backlog
from edl.launch.line_buffer import LineBuffer, as_shown
from edl.launch.log_reader import LogReader
from edl.launch.output_stream import OutputStream

_POLL_S = 0.05
_CHUNK_BYTES = 1 << 16
_LINE_BYTES = 1 << 16  # a longer line is shown in pieces
_ROUND_BYTES = 1 << 22  # of one worker, before others and the notes have their turn
_LAST_BYTES = 1 << 18  # of a worker's output that are looked at for why it ended
_OF_EDL = "edl: "
_SENTENCES_KEPT = 100  # edl's own lines of workers, of which another one says the same
_END_S = 60.0  # at the end, for a reader that reads nothing
_COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "bright_cyan", "bright_green")


class _Note(NamedTuple):
    """A line of the agent's own, and a shorter form if a worker has said the same."""

    text: str  # with "edl: " before it, unless it is a log record
    sentence: str = ""  # that the line repeats, with "edl: "; empty: none
    shorter: str = ""  # to show if a worker has printed `sentence`


class _Tail:
    """A reader of one worker's log that knows the prefix of its lines and its progress bar."""

    def __init__(self, path: Path, slot: int, from_now: bool) -> None:
        self.path = path
        self.slot = slot
        self.prefix = f"[slot {slot}]"
        self.ended = False  # the worker has exited: nothing follows what is there
        self.buffer = LineBuffer(_LINE_BYTES)
        self._reader = LogReader(path, from_now)

    def lines(self, finish: bool) -> Iterator[list[str]]:
        """Yield the complete lines that a worker has added to its log since the last call."""
        left = _ROUND_BYTES
        while (finish or left > 0) and (chunk := self._reader.read(_CHUNK_BYTES)):
            left -= len(chunk)
            yield self.buffer.add(chunk)
        if finish:
            yield self.buffer.finish()

    def close(self) -> None:
        """Close the log file; `lines` must not be called afterwards."""
        self._reader.close()


class Output:
    """The writer of an agent's output and error, in a thread: the methods return at once."""

    def __init__(
        self,
        console: Console,
        live: Callable[[], Text] | None = None,
        bar_s: float = 10.0,
        shows_workers: bool = True,
    ) -> None:
        self._console = console
        self._file = console.file
        self._out, self._err = OutputStream(self._file), OutputStream(sys.stderr)
        self._shows_workers = shows_workers
        self._bar_s = bar_s
        self._render = live
        self._live: Live | None = None
        self._notes: Backlog[_Note] = Backlog()
        self._lock = threading.Lock()  # of what follows; never held while something is written
        self._tails: dict[str, _Tail] = {}
        self._sentences: deque[str] = deque(maxlen=_SENTENCES_KEPT)  # of edl's, printed by workers
        self._wake = threading.Event()
        self._stop = False
        self._wrote_at = time.monotonic()
        self._thread: threading.Thread | None = None
        self._logging = _Logging(lambda line: self._put(_Note(line)))

    def __enter__(self) -> Self:
        self._console.file = cast(
            IO[str], self._out
        )  # from now on, what rich draws raises no error
        if self._render is not None and self._console.is_terminal:
            self._live = Live(
                get_renderable=self._below,
                console=self._console,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        self._logging.take_over()
        self._thread = threading.Thread(target=self._work, name="edl-output", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._logging.give_back()
        self._stop = True
        self._wake.set()
        self._wrote_at = time.monotonic()
        while self._thread is not None and self._thread.is_alive():
            self._thread.join(_POLL_S)
            if time.monotonic() - self._wrote_at > _END_S:
                return  # the output is not read; the workers' lines are in their logs
        if self._live is not None:
            self._live.stop()
        self._console.file = self._file

    def follow(self, attempt_id: str, path: Path, slot: int, from_now: bool = False) -> None:
        """Show the lines in the log of one start attempt of a worker, as the worker writes them."""
        with self._lock:
            self._tails[attempt_id] = _Tail(path, slot, from_now)

    def name(self, attempt_id: str, name: str) -> None:
        """Show `[name]` in place of `[slot N]` before each further line of a worker."""
        with self._lock:
            if attempt_id in self._tails:
                self._tails[attempt_id].prefix = f"[{name}]"

    def finish(self, attempt_id: str) -> str:
        """Let the rest of an ended worker's log be shown; return the line that explains the end."""
        with self._lock:
            tail = self._tails.get(attempt_id)
            if tail is None:
                return ""
            tail.ended = True
        return best(_last_lines(tail.path))

    def note(self, text: str, sentence: str = "", shorter: str = "") -> None:
        """Show a line of the agent itself, after "edl: ", once the lines before it are shown."""
        self._put(_Note(f"{_OF_EDL}{text}", f"{_OF_EDL}{sentence}", f"{_OF_EDL}{shorter}"))

    # --- the thread that writes

    def _work(self) -> None:
        while not self._stop:
            self._wake.wait(_POLL_S)
            self._wake.clear()
            self._round()
        self._round(last=True)

    def _round(self, last: bool = False) -> None:
        """Write the lines that wait: the workers' first, as they were printed before ours."""
        left_out, notes = self._notes.take()
        with self._lock:
            tails = list(self._tails.items())
        for attempt_id, tail in tails:
            ended = tail.ended or last
            try:
                if self._shows_workers:
                    self._show_news(tail, ended)
            except OSError as error:  # of its disk, for example; the other logs are shown on
                ended = True
                notes.append(_Note(f"edl: {tail.prefix} its log cannot be read: {error}"))
            if ended:
                with self._lock:
                    del self._tails[attempt_id]
                tail.close()
        if left_out:
            notes.insert(0, _Note(left_out))
        for note in notes:
            self._say(note.shorter if note.sentence in self._sentences else note.text)

    def _show_news(self, tail: _Tail, finish: bool) -> None:
        """Show the lines that a worker has written since the last call, then its progress bar."""
        for lines in tail.lines(finish=finish):
            self._show(tail, lines)
        if not self._console.is_terminal:
            self._show(tail, tail.buffer.due_bar(self._bar_s))

    def _put(self, note: _Note) -> None:
        self._notes.put(note)
        self._wake.set()

    def _below(self) -> Text:
        """Return the text that stands below all lines on a terminal."""
        assert self._render is not None
        bars = [
            Text.assemble((tail.prefix, _colour(tail)), " ", Text.from_ansi(bar))
            for tail in list(self._tails.values())
            if (bar := tail.buffer.bar)
        ]
        return Text("\n").join([*bars, self._render()])

    def _show(self, tail: _Tail, found: list[str]) -> None:
        lines = [line for line in found if not is_of_horovod(line) and self._is_news(line)]
        if not lines:
            return
        if not self._console.is_terminal:
            self._out.write("".join(f"{tail.prefix} {line}\n" for line in lines))
        else:
            block = Text("\n").join(
                Text.assemble((tail.prefix, _colour(tail)), " ", Text.from_ansi(line))
                for line in lines
            )
            self._console.print(block, soft_wrap=True)
        self._wrote_at = time.monotonic()

    def _is_news(self, line: str) -> bool:
        """Return whether to show a line: one of edl's that all workers print is shown once."""
        if not line.startswith(_OF_EDL):
            return True
        if line in self._sentences:
            return False
        self._sentences.append(line)
        return True

    def _say(self, line: str) -> None:
        if self._console.is_terminal:
            text = Text(wrapped(line, self._console.width, len(_OF_EDL)), style="bold")
            self._console.print(text, soft_wrap=True)
        else:
            self._err.write(f"{line}\n")
        self._wrote_at = time.monotonic()


class _Logging(logging.Handler):
    """A logging handler that passes each log record, as a formatted text, to `put`."""

    def __init__(self, put: Callable[[str], None]) -> None:
        super().__init__()
        self._put = put
        self._streams: list[logging.Handler] = []

    def take_over(self) -> None:
        """Replace the stream handlers of the root logger by this handler."""
        root = logging.getLogger()
        self._streams = [one for one in root.handlers if type(one) is logging.StreamHandler]
        for one in self._streams:
            self.setFormatter(one.formatter)
            root.removeHandler(one)
        if self._streams:
            root.addHandler(self)

    def give_back(self) -> None:
        """Remove this handler from the root logger, and restore those that it has replaced."""
        root = logging.getLogger()
        root.removeHandler(self)
        for one in self._streams:
            root.addHandler(one)

    def emit(self, record: logging.LogRecord) -> None:
        """Pass one log record, formatted, to `put`, which shows it as a line of the agent."""
        try:
            self._put(self.format(record))
        except (TypeError, ValueError, KeyError):  # its arguments do not fit its text
            self.handleError(record)


def _last_lines(path: Path) -> list[str]:
    """Return the last lines of the log `path`, oldest first, as a terminal would show them."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LAST_BYTES))
            return [as_shown(line) for line in file.read(_LAST_BYTES).split(b"\n")[-KEPT:]]
    except OSError:  # the file was removed
        return []


def _colour(tail: _Tail) -> str:
    return _COLOURS[tail.slot % len(_COLOURS)]


def wrapped(line: str, width: int, indent: int) -> str:
    """Return `line` broken at words to `width` columns, with all lines but the first indented."""
    return textwrap.fill(
        line,
        max(width, indent + 20),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
