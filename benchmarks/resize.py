"""What a resize costs those who were training: the longest gap between two of their steps.

A job starts with 2 workers, is asked for 3, then for 2 again. An *old* worker is one that trains
before and after the change. Its gaps are looked at from the moment of the request until
``SETTLED`` steps after the change; beside the longest stands its median step before the request.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

import numpy as np

from benchmarks import parts
from benchmarks.jobs import EdlJob, Job, Steps

WARM = 80  # steps of each worker before the first request
SETTLED = 30  # steps of each old worker after a change
BASELINE = 60  # steps before the request, in the ring of then, that its median is taken from
CHANGES = {"scale-out 2 → 3": (2, 3), "scale-in 3 → 2": (3, 2)}


@dataclass(frozen=True)
class Stall:
    """One change of one job. Times in seconds."""

    gap_s: float  # the longest gap of all old workers
    median_step_s: float  # before the request
    gaps_s: Mapping[int, float]  # the longest gap of each old worker, by process id
    timeline: tuple[tuple[float, float], ...]  # of the worst: (time since request, gap)
    parts_s: Mapping[str, float]  # of the switch, of the slowest old worker; empty for stock
    whole_s: float = 0.0  # from the request to the end of the first step in a ring of the new size


def measure(job: Job, module: str, *arguments: str) -> dict[str, Stall]:
    """Run ``module`` under ``job``'s launcher and resize it; the stall of each of CHANGES."""
    found = {}
    try:
        job.start(module, 2, *arguments)
        job.wait(
            lambda: (
                len(job.steps()) == 2 and all(len(s.step) >= WARM for s in job.steps().values())
            ),
            f"{WARM} steps of 2 workers",
        )
        for name, (before, after) in CHANGES.items():
            present = [s.worker for s in job.steps().values() if s.size[-1] == before]
            asked_s = time.monotonic()
            job.resize(after)
            job.wait(
                lambda present=present, asked_s=asked_s, before=before, after=after: (
                    len(_settled(job.steps(), present, asked_s, after)) == min(before, after)
                ),
                f"{SETTLED} steps of each old worker after {name}",
            )
            steps = job.steps()
            old = _settled(steps, present, asked_s, after)
            slowest = _parts(job, after)
            found[name] = stall((steps[worker] for worker in old), asked_s, after, slowest)
    finally:
        job.stop()
    return found


def _settled(
    steps: Mapping[int, Steps], present: Iterable[int], asked_s: float, size: int
) -> list[int]:
    """Those of ``present`` that have trained on in the ring of the new size."""
    return [
        worker
        for worker in present
        if np.sum((steps[worker].time_s > asked_s) & (steps[worker].size == size)) >= SETTLED
    ]


def _parts(job: Job, size: int) -> dict[str, float]:
    if not isinstance(job, EdlJob):
        return {}
    events = job.printed("events")
    return parts.slowest(events, lambda switch: switch["world_size"] == size, parts.PLANNED)


def stall(
    old: Iterable[Steps], asked_s: float, size: int, parts_s: Mapping[str, float] | None = None
) -> Stall:
    """Compute the stall of a change to ``size`` workers that was asked for at ``asked_s``.

    ``old`` are the logs of the workers that were there before the change.
    """
    gaps, medians, lines, whole = {}, [], {}, []
    for steps in old:
        changed = np.flatnonzero((steps.time_s > asked_s) & (steps.size == size))[0]
        first = np.searchsorted(steps.time_s, asked_s)  # the first step after the request
        times = steps.time_s[first - 1 : changed + SETTLED]
        whole.append(float(steps.time_s[changed] - asked_s))
        between = np.diff(times)
        gaps[steps.worker] = float(between.max())
        lines[steps.worker] = tuple(
            zip((times[1:] - asked_s).tolist(), between.tolist(), strict=True)
        )
        ring = steps.size[first - 1]
        before = steps.time_s[:first][steps.size[:first] == ring][-BASELINE:]
        medians.append(np.median(np.diff(before)))
    worst = max(gaps, key=lambda worker: gaps[worker])
    usual_s, told = float(median(medians)), parts_s or {}
    return Stall(gaps[worst], usual_s, gaps, lines[worst], told, max(whole))
