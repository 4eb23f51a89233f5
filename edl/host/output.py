"""Show the output of an agent: its workers' lines, each with a prefix, and the agent's own lines.

A worker writes to a log file, not to a pipe, so that it can go on when the agent has died. Only one
thread writes lines, and no other waits for it: a terminal or pipe that nobody reads (``edl run |
less``, Ctrl-S) delays no decision. Meanwhile workers' lines wait in their files, and the newest
1,000 of the agent's own in memory. No method of :class:`Output` raises an error when the terminal
or the pipe is closed.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import io
import logging
import os
import re
import select
import sys
import textwrap
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Generic, NamedTuple, Self, TypeVar, cast

from rich.console import Console
from rich.live import Live
from rich.text import Text

from edl.host.logs import LogReader

# ------------------------------------------------------------
# Find the line of a dead process's output that best says why the process died.
#
# Mostly the last one. But after an error Python, libraries and progress bars may write more: so the
# end of the last traceback is chosen if at most `AFTER` (10) meaningful lines follow it, with
# the innermost line of the user's code; otherwise the last line that is not noise.


KEPT_LINES = 400  # lines of a process's output that are looked at
AFTER = 10  # lines of weight after a traceback: then the script went on
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_TRACEBACK = "Traceback (most recent call last)"
_EDL = re.escape(__file__.rpartition("/host/")[0])
_FRAME = re.compile(  # of the script, not of a library
    rf'File "(?!.*/(?:site|dist)-packages/|.*/lib/python3|{_EDL}/|<)([^"]+)", line (\d+)'
)
# What a script for torchrun asks for first; edl sets no such variable.
_OF_TORCHRUN = re.compile(
    r"environment variable (?:RANK|WORLD_SIZE|MASTER_\w+) expected"
    r"|^KeyError: '(?:RANK|LOCAL_RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT)'"
)
FOR_TORCHRUN = (
    "the script is written for torchrun, whose variables edl does not set: make it elastic as "
    "docs/get-started/from-ddp.md says"
)
_IGNORED = ("Exception ignored in", "Error in atexit._run_exitfuncs")

# An error or a warning of Horovod's C++, with the path of its source: "[DATE TIME: E /...".
_OF_HOROVOD = re.compile(r"^\[\d{4}-\d\d-\d\d[ ][\d:.]+:?\s*[EWF]\b.*horovod/")
_NOISE = re.compile(
    r"""
    \d+%\s?\||━|\[=+[>.=]*\]|\d[\d.]*\s?(?:it/s|s/it|ms/step|s/step|s/epoch)   # progress bars
    |^\[\d{4}-\d\d-\d\d[ ][\d:.]+:?\s*[TDIWE]\b.*horovod/        # Horovod's own log
    |^\[[\d.]+\]:?[ ]?\[?[TDIWE]\b.*horovod                      # the same without the date
    |^[IWE]\d{4}\s[\d:.]+\s                                      # glog: [IWE]mmdd hh:mm:ss
    |^\d{4}-\d\d-\d\d\s[\d:.,]+:?\s[IWE]\s                       # TensorFlow's
    |^(?:WARNING|INFO|DEBUG):                                    # logging's plain format, absl
    |absl::InitializeLog
    |^\[(?:rank\d+\]:)?\[?[IW]\d{3,}\s                           # PyTorch's C++ warnings
    |^\[[IW]\s\S+\.cpp
    |:\d+:\s\w*Warning:|^\w*Warning:|^warnings\.warn\(           # Python's warnings
    |resource_tracker
    |^(?:During\shandling\sof\sthe\sabove|The\sabove\sexception\swas\sthe\sdirect)
    |^Fatal\sPython\serror:\s_enter_buffered_busy                # a thread still wrote at the end
    """,
    re.VERBOSE,
)


def best(lines: Iterable[str]) -> str:
    """Return the line of a process's output that best says why it ended; empty if none does."""
    weighty: list[str] = []
    error = None  # index in ``weighty`` of the end of the last traceback
    inside, ignored = False, False
    where = ""
    for coloured in lines:
        line = _COLOUR.sub("", coloured).rstrip()
        text = line.strip()
        if text.startswith(_IGNORED):
            inside, ignored = False, True
        elif text.removeprefix("Original ").startswith(_TRACEBACK):  # of a loader's process
            inside, where = True, ""
        elif inside and line[:1] in ("", " ", "\t"):
            if frame := _FRAME.match(text):
                where = f" ({frame[1].rpartition('/')[2]}:{frame[2]})"
        elif inside:
            if not ignored:
                error = len(weighty)
                cause = f"; {FOR_TORCHRUN}" if _OF_TORCHRUN.search(text) else ""
                weighty.append(f"{text}{where}{cause}")
            inside, ignored = False, False
        elif text and not is_noise(text):
            ignored = False
            if error is None or line == text:  # else it goes on with the error's message
                weighty.append(text)
    if error is not None and len(weighty) - error <= AFTER:
        return weighty[error]
    return weighty[-1] if weighty else ""


def is_of_horovod(line: str) -> bool:
    # Many when a ring breaks: an agent shows none, as the job's events say the same.
    return _OF_HOROVOD.search(line) is not None


def is_noise(text: str) -> bool:
    return _NOISE.search(text) is not None


# ------------------------------------------------------------
# Write the output of a process that must live to a terminal, a pipe or a file that may fail.


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
        return self._encoding

    def isatty(self) -> bool:
        return self._is_terminal

    def fileno(self) -> int:
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
                poll = select.poll()
                poll.register(self._descriptor, select.POLLOUT)
                poll.poll(_READABLE_S * 1000)
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
    # A notebook's file has the descriptor of its server's terminal: it is written as usual.
    if not isinstance(file, io.TextIOWrapper):
        return None
    try:
        return file.fileno()
    except (io.UnsupportedOperation, ValueError):  # no file of the system, in a test; or closed
        return None


class LineBuffer:
    """A splitter of a log into lines; of a progress bar, it keeps the newest state only."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest = b""
        self._bar_shown = ("", time.monotonic())

    def add(self, content: bytes) -> list[str]:
        """Return the lines that `content`, the next part of the log, completes, in order."""
        *complete, rest = (self._rest + content).split(b"\n")
        # Of a progress bar, its newest state.
        before, _, newest = rest.rstrip(b"\r").rpartition(b"\r")
        self._rest = b"\r" + newest + rest[len(rest.rstrip(b"\r")) :] if before else rest
        if len(self._rest) > self._max_bytes:
            complete.append(self._rest)
            self._rest = b""
        return [as_shown(line) for line in complete]

    def finish(self) -> list[str]:
        rest, self._rest = self._rest, b""
        return [as_shown(rest)] if rest else []

    @property
    def bar(self) -> str:
        """The newest state of the progress bar; empty if the last line, if any, is no such bar."""
        return as_shown(self._rest) if b"\r" in self._rest.rstrip(b"\r") else ""

    def due_bar(self, period_s: float) -> list[str]:
        shown, at = self._bar_shown
        now, bar = time.monotonic(), self.bar
        if now - at < period_s or bar in ("", shown):
            return []
        self._bar_shown = (bar, now)
        return [bar]


def as_shown(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r").rsplit("\r", 1)[-1]


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
        with self._lock:
            dropped, lines = self._dropped, list(self._lines)
            self._dropped = 0
            self._lines.clear()
        what = f"{dropped} lines are" if dropped > 1 else "1 line is"
        said = f"edl: {what} left out here, which nobody has read in time" if dropped else ""
        return said, lines


# ------------------------------------------------------------
# Copy the standard error of a child unchanged to another file, and keep its last lines.


_CHUNK_BYTES = 1 << 16
_REST_S = 2.0  # for the last output of a child; a process that it started may hold the pipe open


class Tee:
    """A copier, with a thread of its own, that copies `source` to `target` and keeps lines."""

    # It reads on if `target` cannot be written, or the child that writes to `source` would block.

    def __init__(self, source: IO[bytes], target: IO[bytes]) -> None:
        self._source, self._target = source, target
        self._newest: deque[bytes] = deque(maxlen=KEPT_LINES)
        self._thread = threading.Thread(target=self._copy, name="edl-stderr", daemon=True)

    def start(self) -> None:
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


_POLL_S = 0.05
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
        # From now on, what rich draws raises no error.
        self._console.file = cast(IO[str], self._out)
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
        with self._lock:
            self._tails[attempt_id] = _Tail(path, slot, from_now)

    def name(self, attempt_id: str, name: str) -> None:
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
        try:
            with tail.path.open("rb") as file:
                file.seek(max(0, tail.path.stat().st_size - _LAST_BYTES))
                lines = file.read(_LAST_BYTES).split(b"\n")[-KEPT_LINES:]
        except OSError:  # the file was removed
            return ""
        return best(map(as_shown, lines))

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
                for lines in tail.lines(finish=ended) if self._shows_workers else ():
                    self._show(tail, lines)
                if self._shows_workers and not self._console.is_terminal:
                    self._show(tail, tail.buffer.due_bar(self._bar_s))
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
            self._print(note.shorter if note.sentence in self._sentences else note.text)

    def _put(self, note: _Note) -> None:
        self._notes.put(note)
        self._wake.set()

    def _below(self) -> Text:
        assert self._render is not None
        bars = [
            Text.assemble((tail.prefix, _colour(tail)), " ", Text.from_ansi(bar))
            for tail in list(self._tails.values())
            if (bar := tail.buffer.bar)
        ]
        return Text("\n").join([*bars, self._render()])

    def _show(self, tail: _Tail, lines: list[str]) -> None:
        lines = [line for line in lines if not is_of_horovod(line) and self._is_news(line)]
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

    def _print(self, line: str) -> None:
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
        root = logging.getLogger()
        self._streams = [one for one in root.handlers if type(one) is logging.StreamHandler]
        for one in self._streams:
            self.setFormatter(one.formatter)
            root.removeHandler(one)
        if self._streams:
            root.addHandler(self)

    def give_back(self) -> None:
        root = logging.getLogger()
        root.removeHandler(self)
        for one in self._streams:
            root.addHandler(one)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._put(self.format(record))
        except (TypeError, ValueError, KeyError):  # its arguments do not fit its text
            self.handleError(record)


def _colour(tail: _Tail) -> str:
    return _COLOURS[tail.slot % len(_COLOURS)]


def wrapped(line: str, width: int, indent: int) -> str:
    return textwrap.fill(
        line,
        max(width, indent + 20),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


# ------------------------------------------------------------
# Write lines from a thread, so that nobody waits for their reader: a terminal or pipe may not be
# read for hours (Ctrl-S, a stopped `tee`). `Output` also shows the lines of workers.


_LINE_S = 0.5  # for a line to be written, while none waits before it
_LINES_END_S = 2.0  # at the end of the process, for a reader that reads nothing


class LineOutput:
    """The output of a process that must live, to a file that perhaps nobody reads; any thread."""

    def __init__(self, file: IO[str] | None) -> None:
        self._stream = OutputStream(file)
        self._backlog: Backlog[str] = Backlog()
        self._writes = False  # lines that were taken from the backlog
        self._changed = threading.Condition()  # its lock may be taken again by a signal's handler

    def start(self) -> None:
        threading.Thread(target=self._work, name="edl-lines", daemon=True).start()
        atexit.register(self.end)

    def write(self, text: str) -> None:
        """Write whole lines; wait 0.5 s at most, and not while earlier ones wait."""
        with self._changed:
            first = self._is_done()
            self._backlog.put(text)
            self._changed.notify_all()
            if first:
                self._changed.wait_for(self._is_done, _LINE_S)

    def flush(self) -> None:
        """Do nothing, for lines are not held back; a logging handler calls it."""

    def end(self) -> None:
        with self._changed:
            self._changed.wait_for(self._is_done, _LINES_END_S)

    def _is_done(self) -> bool:
        return not self._writes and not self._backlog

    def _work(self) -> None:
        while True:
            with self._changed:
                self._writes = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._backlog)
                left_out, lines = self._backlog.take()
                self._writes = True
            for text in [f"{left_out}\n", *lines] if left_out else lines:
                self._stream.write(text)
            self._stream.flush()
