"""What every training script of the benchmark has in common, whatever its framework."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

BATCH_SIZE = 32  # of a worker
SAMPLES = 32_768
POOL = 4096  # distinct samples; the data set repeats them
FEATURES, CLASSES = 256, 10
EPOCHS = 1_000_000  # the benchmark ends the job, not the script


class StepLog:
    """Appends "monotonic_ns step size" for each completed step to ``<directory>/<pid>.steps``.

    CLOCK_MONOTONIC is one clock for all processes of a machine.
    """

    def __init__(self, directory: Path) -> None:
        path = directory / f"{os.getpid()}.steps"
        self._file = path.open("a", buffering=1)  # a line reaches the file at once

    def completed(self, step: int, size: int) -> None:
        self._file.write(f"{time.monotonic_ns()} {step} {size}\n")


class Turns:
    """Lets two jobs train in turns, block by block, so that both meet the same machine.

    The first ``warm`` steps are free; after them and after every ``block`` steps a worker says
    that it is done and sleeps until the conductor (step_time.py) opens the named pipe of its next
    turn, so its own threads are all that uses a processor meanwhile.
    """

    def __init__(self, directory: Path, name: str, warm: int, block: int) -> None:
        self._directory, self._name, self._warm, self._block = directory, name, warm, block

    def completed(self, step: int) -> None:
        turn, rest = divmod(step - self._warm, self._block)
        if step < self._warm or rest:
            return
        (self._directory / f"{self._name}.{turn}.{os.getpid()}.done").touch()
        with (self._directory / f"{self._name}.{turn}.go").open("rb"):  # once it has a writer
            pass


class Progress:
    """Where a script tells of its completed steps, and waits for its turn."""

    def __init__(self, log: StepLog, turns: Turns | None) -> None:
        self._log, self._turns = log, turns

    def completed(self, step: int, size: int) -> None:
        self._log.completed(step, size)
        if self._turns:
            self._turns.completed(step)


def arguments(modes: tuple[str, ...] = ()) -> tuple[Progress, str]:
    """Arguments of all training scripts: where to tell of steps, and which of ``modes``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps-to", type=Path, required=True, help="directory of the step logs")
    parser.add_argument("--turns", type=Path, help="directory in which jobs take turns")
    parser.add_argument("--name", default="", help="name of this job in the turns")
    parser.add_argument("--warm", type=int, default=0)
    parser.add_argument("--block", type=int, default=1)
    parser.add_argument("--mode", choices=modes, default=modes[0] if modes else "")
    args = parser.parse_args()
    turns = args.turns and Turns(args.turns, args.name, args.warm, args.block)
    return Progress(StepLog(args.steps_to), turns), args.mode
