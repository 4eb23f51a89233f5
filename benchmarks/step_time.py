"""What edl costs in a step, between changes: its median step beside plain Horovod's.

A shared machine drifts by more than the few percent that we look for, so the two are paired:
both jobs run at the same time, but train in turns, a block of steps each (ABBA ...). A pair of
neighbouring blocks gives one ratio; the median of the ratios and its confidence interval are
the result. The first steps of a block are dropped: they meet the other job's data in the caches.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil

from benchmarks.jobs import Job
from benchmarks.page import Section, markdown

WARM = 40  # steps before the first block
DROPPED = 3  # steps at the start of a block
WORKERS = 2


@dataclass(frozen=True)
class Comparison:
    """Job B beside job A. ``ratios`` are B's block medians over A's, pair by pair."""

    a_s: float  # median of A's block medians
    b_s: float
    ratios: tuple[float, ...]
    ratio: float  # their median
    low: float  # its 95 % interval
    high: float
    a_cpu_s: float  # CPU time of one worker in a step: less exposed to other load
    b_cpu_s: float
    a_idle: float  # CPU of one waiting worker, in cores
    b_idle: float


def compare(
    a: tuple[Job, str],
    b: tuple[Job, str],
    turns: Path,
    rounds: int,
    block: int,
    arguments: tuple[str, ...] = (),
    workers: int = WORKERS,
    of_block: Callable[[Job, int, int], float] | None = None,
) -> Comparison:
    """Let two jobs train in turns, and compare B's steps with A's.

    Args:
        a: the job A, not started, and the module that it trains.
        b: the job B, and its module.
        turns: a directory that does not exist, in which they take turns.
        rounds: the number of pairs of blocks.
        block: the number of steps in a block.
        arguments: those of both modules.
        workers: the number of workers of each job.
        of_block: returns the time of a step in a block, from the job, the number of the block and
            its steps; None: :func:`block_median`.
    """
    of_block = of_block or block_median
    turns.mkdir(parents=True)
    jobs = {"a": a[0], "b": b[0]}
    medians: dict[str, list[float]] = {"a": [], "b": []}
    busy: dict[str, list[float]] = {"a": [], "b": []}
    idle, idle_s = {"a": 0.0, "b": 0.0}, {"a": 0.0, "b": 0.0}
    try:
        for name, (job, module) in {"a": a, "b": b}.items():
            prepare_block(turns, name, 0)
            turn = ["--turns", str(turns), "--name", name]
            turn += ["--warm", str(WARM), "--block", str(block)]
            job.start(module, workers, *turn, *arguments)
            wait_for_block(job, turns, name, 0, workers)
        for turn in range(rounds):
            for name in "ab" if turn % 2 == 0 else "ba":
                before, began_s = {each: cpu_s(job) for each, job in jobs.items()}, time.monotonic()
                train_block(jobs[name], turns, name, turn, workers)
                used = {each: cpu_s(job) - before[each] for each, job in jobs.items()}
                waiting = "b" if name == "a" else "a"
                idle[waiting] += used[waiting] / workers
                idle_s[waiting] += time.monotonic() - began_s
                busy[name].append(used[name] / block / workers)
                medians[name].append(of_block(jobs[name], turn, block))
    finally:
        for job in jobs.values():
            job.stop()
    ratios = np.array(medians["b"]) / np.array(medians["a"])
    low, high = confidence(ratios)
    return Comparison(
        a_s=float(np.median(medians["a"])),
        b_s=float(np.median(medians["b"])),
        ratios=tuple(ratios.tolist()),
        ratio=float(np.median(ratios)),
        low=low,
        high=high,
        a_cpu_s=float(np.median(busy["a"])),
        b_cpu_s=float(np.median(busy["b"])),
        a_idle=idle["a"] / idle_s["a"],
        b_idle=idle["b"] / idle_s["b"],
    )


def policy_page(found: Mapping[str, Comparison], machine: str) -> str:
    """benchmarks/results/policy.md."""
    rows = [
        [
            framework,
            f"{1e3 * one.a_s:.2f}",
            f"{1e3 * one.b_s:.2f}",
            f"{one.ratio - 1:+.2%} ({one.low - 1:+.2%} to {one.high - 1:+.2%})",
            f"{1e3 * one.a_cpu_s:.2f}, {1e3 * one.b_cpu_s:.2f}",
        ]
        for framework, one in found.items()
    ]
    head = ["", "without, ms", "with, ms", "longer by (95 %)", "processor time, ms"]
    pairs = max(len(one.ratios) for one in found.values())
    how = (
        f"Two jobs of {WORKERS} workers, one of which follows a policy (rule `votes`, which wishes "
        "for nothing, and `stragglers`), train in turns, a block of steps each: the median step of "
        f"{pairs} pairs of blocks. The workers wait for each other in each step, so the figures of "
        "one pair vary by more than a policy costs."
    )
    section = Section("A step with a policy", how, head, rows)
    command = "python -m benchmarks --only policy"
    return markdown("What a policy costs", command, f"Machine: {machine}.", [section])


def confidence(ratios: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the 95 % interval of the median of ``ratios``: a percentile bootstrap.

    Its seed is fixed.
    """
    draws = np.random.default_rng(0).choice(ratios, (10_000, len(ratios)))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    return float(low), float(high)


def prepare_block(turns: Path, name: str, turn: int) -> None:
    """Make the named pipe that the workers of a job open before they train the block ``turn``."""
    os.mkfifo(turns / f"{name}.{turn}.go")


def train_block(job: Job, turns: Path, name: str, turn: int, workers: int = WORKERS) -> None:
    """Let the workers of a job train the block ``turn``, and return when all wait again."""
    prepare_block(turns, name, turn + 1)
    # For both, so that the conductor does not wait for the first reader.
    pipe = os.open(turns / f"{name}.{turn}.go", os.O_RDWR)
    try:
        wait_for_block(job, turns, name, turn + 1, workers)
    finally:
        os.close(pipe)


def wait_for_block(job: Job, turns: Path, name: str, turn: int, workers: int = WORKERS) -> None:
    """Until all workers of the job have trained the block before ``turn`` and wait again."""
    job.wait(
        lambda: len(list(turns.glob(f"{name}.{turn}.*.done"))) == workers,
        f"end of block {turn}",
    )


def block_median(job: Job, turn: int, block: int) -> float:
    """Median step of the job's workers in one block."""
    first = WARM + turn * block  # the step that ended before the block
    durations = []
    for steps in job.steps().values():
        within = (steps.step > first + DROPPED) & (steps.step <= first + block)
        durations.append(np.diff(steps.time_s[within]))
    return float(np.median(np.concatenate(durations)))


def cpu_s(job: Job) -> float:
    """CPU seconds that the job's workers have used so far."""
    used = 0.0
    for worker in job.steps():
        times = psutil.Process(worker).cpu_times()
        used += times.user + times.system
    return used
