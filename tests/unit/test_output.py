"""What an agent shows of its workers' output: lines, and progress bars while they run."""

from __future__ import annotations

import io
import logging
import os
import pty
import select
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import pytest
from rich.console import Console
from rich.text import Text

from edl.host.output import KEPT, Output

Write = Callable[[str], None]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[tuple[Path, Write]]:
    path = tmp_path / "log"
    with path.open("w", newline="") as file:

        def write(text: str) -> None:
            file.write(text)
            file.flush()

        yield path, write


def shown(path: Path, write: Write, *pieces: str) -> list[str]:
    found = io.StringIO()
    one = Output(Console(file=found, force_terminal=False), bar_s=0.0)
    one.follow("launch", path, 0)
    one.name("launch", "w0")
    after = []
    for piece in pieces:
        write(piece)
        one._round()
        after.append(found.getvalue())
        found.seek(0)
        found.truncate()
    one.finish("launch")
    one._round()
    return after


def test_a_progress_bar_is_seen_while_it_runs(log: tuple[Path, Write]) -> None:
    pieces = ["begin\n\r  0%|", "\r 50%|#", "", "\r 60%|#\r 70%|##", "\r100%|###\n", "end\n"]
    assert shown(*log, *pieces) == [
        "[w0] begin\n[w0]   0%|\n",
        "[w0]  50%|#\n",
        "",
        "[w0]  70%|##\n",
        "[w0] 100%|###\n",
        "[w0] end\n",
    ]


def test_a_line_is_complete_before_it_is_shown(log: tuple[Path, Write]) -> None:
    pieces = ["half", " a line\r", "\nand another\r\n"]
    assert shown(*log, *pieces) == ["", "", "[w0] half a line\n[w0] and another\n"]


def test_on_a_terminal_it_is_drawn_below_the_lines(log: tuple[Path, Write]) -> None:
    path, write = log
    terminal = Console(file=io.StringIO(), force_terminal=True)
    one = Output(terminal, lambda: Text("step 7"))
    one.follow("launch", path, 0)
    write("\r 10%|\r 20%|#")
    one._round()
    assert one._below().plain == "[slot 0]  20%|#\nstep 7"
    write("\r100%|##\n")
    one._round()
    assert one._below().plain == "step 7"
    one.finish("launch")
    one._round()


def test_nobody_waits_for_a_reader(
    log: tuple[Path, Write], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a pipe does not take waits, and all of it comes when it is read at last."""
    path, write = log
    (lines, into_lines), (notes, into_notes) = os.pipe(), os.pipe()
    with open(into_lines, "w") as stdout, open(into_notes, "w") as stderr, ExitStack() as ends:
        monkeypatch.setattr("sys.stderr", stderr)
        with Output(Console(file=stdout, force_terminal=False)) as one:
            one.follow("launch", path, 0)
            for number in range(20_000):
                write(f"a line that nobody reads, number {number}\n")
            for number in range(2 * KEPT):
                one.note(f"note {number}")
            write("ValueError: the last words\n")
            assert one.finish("launch") == "ValueError: the last words"
            read = [
                ends.enter_context(ThreadPoolExecutor(2)).submit(_all, end)
                for end in (lines, notes)
            ]
        stdout.close()
        stderr.close()
        shown, said = (one.result(30).splitlines() for one in read)
    assert shown[:1] + shown[-2:] == [
        "[slot 0] a line that nobody reads, number 0",
        "[slot 0] a line that nobody reads, number 19999",
        "[slot 0] ValueError: the last words",
    ]
    assert len(shown) == 20_001
    assert said[-1] == f"edl: note {2 * KEPT - 1}"
    assert any("lines are left out here" in line for line in said)


def test_log_records_are_lines_of_the_agent(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = logging.StreamHandler(io.StringIO())
    usual.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [usual])
    with Output(Console(file=io.StringIO(), force_terminal=False)):
        logging.getLogger("edl").warning("a word")
    assert capsys.readouterr().err == "WARNING a word\n"
    assert root.handlers == [usual]


@contextmanager
def output_to(file: IO[str], path: Path) -> Iterator[Output]:
    one = Output(Console(file=file, force_terminal=False))
    one.follow("launch", path, 0)
    yield one
    one.finish("launch")
    one._round()


def test_the_end_of_one_stream_leaves_the_other(
    log: tuple[Path, Write], capsys: pytest.CaptureFixture[str]
) -> None:
    """As in `edl run | head`."""
    path, write = log
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stdout, output_to(stdout, path) as one:
        write("a line\n")
        one._round()
        one.note("the job has failed")
        one._round()
    assert capsys.readouterr().err == "edl: the job has failed\n"


def test_what_a_full_disk_does_not_take_is_counted(log: tuple[Path, Write], tmp_path: Path) -> None:
    path, write = log
    with (
        (tmp_path / "out").open("w") as disk,
        open("/dev/full", "w") as stdout,
        output_to(stdout, path) as one,
    ):
        for _ in range(2):
            write("one\ntwo\n")
            one._round()
        os.dup2(disk.fileno(), stdout.fileno())  # there is room again
        for _ in range(2):
            write("three\n")
            one._round()
    assert (tmp_path / "out").read_text().splitlines() == [
        "edl: 4 lines are left out here: [Errno 28] No space left on device",
        "[slot 0] three",
        "[slot 0] three",
    ]


def test_a_pipe_may_be_non_blocking(log: tuple[Path, Write]) -> None:
    """Another process that has the pipe, too, may have made it so."""
    path, write = log
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with (
        open(writer, "w") as stdout,
        output_to(stdout, path) as one,
        ThreadPoolExecutor(1) as other,
    ):
        write("x" * 60_000 + "\n" + "y" * 60_000 + "\n")
        round_ends = other.submit(one._round)
        read = b""
        while not read.endswith(b"y\n"):
            assert select.select([reader], [], [], 5.0)[0], "the pipe got no more"
            read += os.read(reader, 1 << 20)
        round_ends.result(5.0)
    os.close(reader)
    assert len(read) == 2 * len("[slot 0] \n") + 120_000


def test_a_terminal_may_lack_characters(log: tuple[Path, Write]) -> None:
    path, write = log
    raw = io.BytesIO()
    with (
        io.TextIOWrapper(raw, encoding="latin-1", write_through=True) as terminal,
        Output(Console(file=terminal, force_terminal=True), lambda: Text("step 7")) as one,
    ):
        one.follow("launch", path, 0)
        write("50% |█\nnext\n")
        one.finish("launch")
        one._stop = True
        assert one._thread is not None
        one._thread.join(5.0)
        shown = raw.getvalue().decode("latin-1")
    assert "50% |?" in shown
    assert "next" in shown


def test_a_terminal_that_was_closed_is_left_alone(
    log: tuple[Path, Write], capsys: pytest.CaptureFixture[str]
) -> None:
    path, write = log
    terminal, writer = pty.openpty()
    with open(writer, "w") as stdout, output_to(stdout, path) as one:
        os.close(terminal)
        write("a line\n")
        one._round()
        assert one._out._is_gone
        write("another\n")
        one.note("the job has failed")
        one._round()
    assert capsys.readouterr().err == "edl: the job has failed\n"


def _all(descriptor: int) -> str:
    with open(descriptor) as file:
        return file.read()
