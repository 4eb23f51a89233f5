"""Refuse a script that sets other options of the optimizer in each pass of a step.

A process goes through the script's loop once for each of its logical workers. A rate that the
script steers by what it counts or decides in a pass would depend on the number of processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edl.errors import UsageError

STEERED = (
    "in step {step} the {name} was {before} in one pass of the script's loop and is {now} in "
    "another: a process goes through the loop once for each logical worker (with --transparent: "
    "rank) that it has, so what the script counts or decides in each pass depends on the number of "
    "processes; set it before the update, by the epoch and the number of the step, the same in all "
    "passes (with --transparent `i` of `for i, batch in enumerate(...)`, else edl.step()), or by a "
    "schedule of PyTorch or Keras"
)


class PassOptions:
    """The options of the optimizer in the first of several passes of a step."""

    def __init__(self) -> None:
        self.step = -1  # this worker's number of the step that they are of
        self._first: Mapping[str, Any] = {}

    def check(self, step: int, options: Mapping[str, Any], made: int) -> None:
        """Raise UsageError if `options`, of a pass of `step`, differ from those of the first."""
        if self.step != step:
            self.step, self._first = step, options
        for name, now in options.items():
            if now != (before := self._first.get(name, now)):
                told = STEERED.format(step=made + 1, name=name, before=before, now=now)
                raise UsageError(told)
