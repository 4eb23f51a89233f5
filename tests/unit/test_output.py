"""What an agent shows of its workers' output: lines, and progress bars while they run."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from edl.launch.output import _NOTES_KEPT, Output

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
    """Return what an agent that is no terminal has shown after each piece."""
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
            for number in range(2 * _NOTES_KEPT):
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
    assert said[-1] == f"edl: note {2 * _NOTES_KEPT - 1}"
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


def _all(descriptor: int) -> str:
    with open(descriptor) as file:
        return file.read()
