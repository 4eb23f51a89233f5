"""How long a worker takes to start, forked from a template and started anew; and what that weighs.

Two workers train an MLP whose graph TensorFlow builds at once. Five times one of them is killed
with -9, and it is measured from the kill until its replacement has completed a step in the ring
of two. Then the job is scaled to three and back, and it is measured from the end of `edl scale`
until three have completed a step. Last a job of eight workers trains, and the memory of all
processes that hold its workers' pages (workers and template) is added up as PSS, which counts a
page that n processes share as 1/n for each.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import psutil

from benchmarks import page
from benchmarks.crash import alive
from benchmarks.jobs import EdlJob, Job

FORKED, ANEW = "from a template", "started anew"
SETTINGS = {FORKED: {"EDL_TEMPLATE": "1"}, ANEW: {"EDL_TEMPLATE": "0"}}
KILLS, SCALES, MANY = 5, 3, 8
WARM = 60  # steps before the first kill; the template is ready by then
TEMPLATE = "host/template/main.py"
ASKED_S = {"torch": (0.6, 1.0), "tensorflow": (1.5, 2.0)}
SCRIPT_ARGUMENTS: Mapping[str, tuple[str, ...]] = {"torch": (), "tensorflow": ("--mode", "wide")}
COMMAND = 'make bench ARGS="--only starting"'


@dataclass(frozen=True)
class Starts:
    """What was measured of one framework in one way. Times in seconds, memory in MB."""

    replaced_s: tuple[float, ...]
    joined_s: tuple[float, ...]
    memory_mb: float


def measure(job: EdlJob, many: EdlJob, framework: str) -> Starts:
    """Measure one framework, with the settings of the two jobs.

    Args:
        job: not started; two workers, which are killed, then scaled to three and back.
        many: not started; grows to eight workers, whose memory is measured.
        framework: a name in :data:`SCRIPT_ARGUMENTS`.

    Raises:
        BenchmarkError: a job has not come to its size within 300 s.
    """
    script = f"benchmarks.{framework}.edl", *SCRIPT_ARGUMENTS[framework]
    chance = random.Random(1)
    try:
        job.start(script[0], 2, *script[1:])
        _until(job, 2, WARM)
        _until_template(job)
        replaced = [_replace(job, chance) for _ in range(KILLS)]
        joined = [_join(job) for _ in range(SCALES)]
    finally:
        job.stop()
    try:
        many.start(script[0], 1, *script[1:])
        _until(many, 1, WARM)
        _until_template(many)
        many.resize(MANY)
        _until(many, MANY, WARM)
        memory_mb = _pss_mb(many)
    finally:
        many.stop()
    return Starts(tuple(replaced), tuple(joined), memory_mb)


def _replace(job: EdlJob, chance: random.Random) -> float:
    victim = chance.choice([steps.worker for steps in alive(job)])
    killed_s = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    return _first_step(job, 2, killed_s) - killed_s


def _join(job: EdlJob) -> float:
    asked_s = time.monotonic()
    job.resize(3)
    told_s = time.monotonic()
    first_s = _first_step(job, 3, asked_s)
    job.resize(2)
    _until(job, 2, WARM // 2, after_s=time.monotonic())
    return max(0.0, first_s - told_s)


def _first_step(job: EdlJob, size: int, after_s: float) -> float:
    """When a worker that came after ``after_s`` has completed a step with ``size`` workers."""
    _until(job, size, WARM // 2, after_s)
    logs = job.steps().values()
    (newest,) = (log for log in logs if log.time_s[0] > after_s)
    return float(newest.time_s[np.flatnonzero(newest.size == size)[0]])


def _until(job: Job, size: int, steps: int, after_s: float = 0.0) -> None:
    """Until ``size`` living workers have made ``steps`` in a ring of that size."""

    def warm() -> bool:
        sizes = [log.size[log.time_s > after_s] for log in alive(job)]
        return sum(int(np.sum(one == size)) >= steps for one in sizes) == size

    job.wait(warm, f"{steps} steps of {size} workers", 300.0)


def _until_template(job: EdlJob) -> None:
    """Until the template is ready, if there is to be one."""
    if job.settings["EDL_TEMPLATE"] == "0":
        return
    state = Path(job.environment()["XDG_STATE_HOME"])
    output = state / "edl" / "jobs" / job.name / "logs" / "template.output"
    job.wait(lambda: output.exists() and "ready, with" in output.read_text(), "template", 300.0)


def _pss_mb(job: EdlJob) -> float:
    assert job._process is not None
    family = psutil.Process(job._process.pid).children(recursive=True)
    return sum(process.memory_full_info().pss for process in family) / 1e6


def markdown(found: Mapping[str, Mapping[str, Starts]], machine: str) -> str:
    """Return the text of the page on starting workers; ``found`` is by framework and way."""
    sections = [
        page.Section(
            framework,
            f"Goal for forked workers: a replacement within {ASKED_S[framework][0]:g} s, a join "
            f"within {ASKED_S[framework][1]:g} s, and less memory than workers that start anew.",
            ("workers are", "replaced, s", "joined, s", "memory of 8 workers, MB"),
            [
                (way, _spread(one.replaced_s), _spread(one.joined_s), f"{one.memory_mb:.0f}")
                for way, one in ways.items()
            ],
        )
        for framework, ways in found.items()
    ]
    text = " ".join((__doc__ or "").split("\n\n", 1)[1].split())
    how = f"Median, and the least and the most. Machine: {machine}. {text}"
    return page.markdown("How long a worker takes to start", COMMAND, how, sections)


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
