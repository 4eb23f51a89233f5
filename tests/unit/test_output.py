"""What an agent shows of its workers' output: lines, and progress bars while they run."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from edl.launch.output import Output

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
    """What an agent that is no terminal has shown after each piece."""
    found = io.StringIO()
    one = Output(Console(file=found, force_terminal=False), bar_s=0.0)
    one.follow("launch", path, 0)
    one.name("launch", "w0")
    tail = one._tails["launch"]
    after = []
    for piece in pieces:
        write(piece)
        one._show(tail, tail.lines(finish=False) + one._due_bar(tail))
        after.append(found.getvalue())
        found.seek(0)
        found.truncate()
    one.finish("launch")
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
    tail = one._tails["launch"]
    write("\r 10%|\r 20%|#")
    one._show(tail, tail.lines(finish=False) + one._due_bar(tail))
    assert one._below().plain == "[slot 0]  20%|#\nstep 7"
    write("\r100%|##\n")
    one._show(tail, tail.lines(finish=False))
    assert one._below().plain == "step 7"
    one.finish("launch")
