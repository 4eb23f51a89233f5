"""Read what waiting.py has logged: when each step of a job began, and with how many workers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


class StepMark(NamedTuple):
    """The begin of a step; the last one of a job is its end.

    Attributes:
        at_s: when, in seconds since 1970.
        step: the number of steps that the job has completed by then.
        workers: the number of workers in the ring.
    """

    at_s: float
    step: int
    workers: int


def step_marks(directory: Path) -> list[StepMark]:
    """Return the marks of a job, whose files are in ``directory``, in order of time."""
    return merged(path.read_text() for path in directory.glob("steps/*.steps"))


def merged(logs: Iterable[str]) -> list[StepMark]:
    """Return the marks in the logs of several workers in order of time, the first of each step.

    The last line of a log is ignored if it is not complete.
    """
    found: dict[int, StepMark] = {}
    lines = [line.split() for text in logs for line in text[: text.rfind("\n") + 1].splitlines()]
    for at, step, workers in sorted(lines, key=lambda words: float(words[0])):
        found.setdefault(int(step), StepMark(float(at), int(step), int(workers)))
    return list(found.values())
