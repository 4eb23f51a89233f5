"""The line of a job below a cell of a notebook."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from made import make_job, wanted

from edl.host.host_agent import LiveLine
from edl.job.snapshot import Snapshot
from edl.program.run import NotebookLine, notebook_display
from edl.records import Generation, JobState, RingMember


def snapshot() -> Snapshot:
    ring = (RingMember(0, "a", 0, "127.0.0.1", 1),)
    generation = Generation(1, 1, ring, 0, (), (), "")
    return Snapshot(job=make_job(), **wanted({"a": 1}), generation=generation)


class Cell:
    def __init__(self) -> None:
        self.shown: list[str] = []
        self.lines = 0

    def display(self, data: dict[str, str], raw: bool, display_id: bool) -> Cell:
        assert raw
        self.lines += 1
        self.update(data, raw)
        return self

    def update(self, data: dict[str, str], raw: bool) -> None:
        self.shown.append(data["text/plain"])


def test_one_line_is_drawn_anew() -> None:
    clock = iter([10.0, 10.1, 11.0, 12.0, 12.1])
    cell = Cell()
    line = NotebookLine(LiveLine("digits"), cell.display, lambda: next(clock))
    now = snapshot()
    for _ in range(3):  # the second one is early, the third has nothing new
        line.update(now)
    line.update(replace(now, generation=None))
    job = replace(now.job, state=JobState.FINISHED, reason="trained 7 steps")
    line.update(replace(now, job=job))
    assert cell.lines == 1
    assert len(cell.shown) == 3
    assert "generation 1" in cell.shown[0]
    assert cell.shown[2] == f"{job.name} has finished: trained 7 steps"


def test_there_is_none_outside_of_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    assert notebook_display() is None

    class Shell:
        kernel: Any = None

    class Ipython:
        display = type("display", (), {"display": "shown"})

        @staticmethod
        def get_ipython() -> Any:
            return shell

    shell = Shell()
    monkeypatch.setitem(__import__("sys").modules, "IPython", Ipython)
    assert notebook_display() is None  # IPython in a terminal
    shell.kernel = object()
    assert notebook_display() == "shown"
