"""The step of each system beside that of DDP, and how long edl takes to build a ring."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psutil

from benchmarks import parts, step_time
from benchmarks.jobs import EdlJob, Job
from benchmarks.step_time import Comparison
from benchmarks.torch.workload import MODELS
from edl.binding.process import KEPT_AT_THE_END, KEPT_BLOCK

EDL, PLAIN, TORCHFT = "edl", "plain Horovod", "torchft"
LARGE = "100M"  # parameters of the model of which only joins and leaves are measured
RING_SIZES = {2: 0.03, 4: 0.06, 8: 0.15, 16: 0.4}  # ranks, and the goal in seconds
RING_TIMES = 3  # how often each size is reached
RING_S = 300.0


@dataclass(frozen=True)
class Pair:
    """A comparison with DDP that is made.

    Attributes:
        system: which system trains beside DDP.
        model: the name of the model (``benchmarks.torch.workload``).
        workers: the number of workers of each job.
        goal: what the ratio to DDP's step is to be at most; None: no goal.
        settings: environment variables of the system's job.
        label: what is said of it on the page.
        ddp_settings: environment variables of DDP's job.
    """

    system: str
    model: str = MODELS[0]
    workers: int = 2
    goal: float | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    label: str = ""
    ddp_settings: Mapping[str, str] = field(default_factory=dict)


# What edl sets in its workers (edl.binding.process).
KEEPS_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(KEPT_BLOCK),
    "MALLOC_TRIM_THRESHOLD_": str(KEPT_AT_THE_END),
}
WITHOUT_MEMORY = {"HOROVOD_SHM_ALLREDUCE": "0"}
PAIRS = (
    Pair(EDL, goal=0.8),
    Pair(EDL, label="DDP keeps freed memory, too", ddp_settings=KEEPS_MEMORY),
    Pair(EDL, goal=1.0, settings=WITHOUT_MEMORY, label="without shared memory"),
    Pair(EDL, "0.1M", goal=1.0),
    Pair(EDL, "50M", goal=1.0),
    Pair(EDL, "50M", label="DDP keeps freed memory, too", ddp_settings=KEEPS_MEMORY),
    Pair(EDL, workers=4, goal=1.0),
    Pair(PLAIN),
    Pair(TORCHFT),
)


def compare(
    pair: Pair,
    make: Callable[[str, Mapping[str, str]], tuple[Job, str]],
    turns: Path,
    rounds: int,
    block: int,
) -> Comparison:
    """Let DDP (a) and the system of ``pair`` (b) train in turns.

    Args:
        pair: the comparison.
        make: returns the job of a system, "DDP" too, and its module, for the settings of the job.
        turns: a directory that does not exist, in which they take turns.
        rounds: the number of pairs of blocks.
        block: the number of steps in a block.
    """
    return step_time.compare(
        make("DDP", pair.ddp_settings),
        make(pair.system, pair.settings),
        turns,
        rounds,
        block,
        ("--mode", pair.model),
        pair.workers,
    )


def ring_times(job: EdlJob, say: Callable[[str], None]) -> dict[int, float]:
    """Return the seconds in which edl builds a ring, by its number of ranks.

    Each is the median of ``RING_TIMES`` changes of a job that grows to that size, of the old worker
    that stood still longest: from the end of the old ring to the connected new one (``init`` in the
    event log).

    Args:
        job: not started; it trains the smallest model.
        say: is told of each change.
    """
    found: dict[int, list[float]] = {size: [] for size in RING_SIZES}
    try:
        job.start("benchmarks.torch.edl", 1, "--mode", "0.1M")
        job.wait(lambda: bool(job.steps()), "first steps", RING_S)
        for turn in range(RING_TIMES):
            if turn > 0:  # from one worker again, when the others have ended and use no processor
                _resize(job, 1)
                job.wait(lambda: sum(map(psutil.pid_exists, job.steps())) == 1, "ends", RING_S)
            for size in RING_SIZES:
                before = job.members().generation
                _resize(job, size)
                slowest: dict[str, float] = {}
                job.wait(
                    lambda size=size, before=before, slowest=slowest: (
                        slowest.update(_slowest(job, before, size)) or bool(slowest)
                    ),
                    f"switch to {size} workers in the events",
                    RING_S,
                )
                found[size].append(slowest["init"])
                say(f"ring of {size}: {slowest['init']:.3f} s")
    finally:
        job.stop()
    return {size: median(times) for size, times in found.items()}


def _resize(job: EdlJob, size: int) -> None:
    """Ask for another size, and wait until as many workers have made a step in it."""
    asked_s = time.monotonic()
    job.resize(size)
    job.wait(
        lambda: (
            sum(
                bool(((log.time_s > asked_s) & (log.size == size)).any())
                for log in job.steps().values()
            )
            == size
        ),
        f"steps of {size} workers",
        RING_S,
    )


def _slowest(job: EdlJob, before: int, size: int) -> dict[str, float]:
    """Return ``init`` of the switch to ``size`` workers; empty while the events do not have it.

    Args:
        job: the job.
        before: the number of the generation before the request.
        size: the number of workers.
    """
    return parts.slowest(
        job.printed("events"),
        lambda switch: switch["generation"] > before and switch["world_size"] == size,
        ("init",),
    )
