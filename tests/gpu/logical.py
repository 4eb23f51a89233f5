"""Scenarios of `edl run --logical` on a GPU: equal bits with any number of workers, its costs."""

from __future__ import annotations

import os
import random
import signal
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from job import Failed, Job

sys.path.extend(str(Path(__file__).parents[1] / name) for name in (".", "integration"))
from logical_runs import digests

from edl.testing import throttle

LOGICAL = 4
WITH = ("--logical", str(LOGICAL))
STEPS = 64  # of the script logical_gpu.py: 4 epochs
SLOW = throttle.Throttle(0.25, 48, 2.0)  # in each iteration, of which a step has two
KINDS = {"free": (), "logical": WITH}  # of jobs whose steps are compared: options of edl run
FIXED = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # with it cuBLAS computes the same bits each time


def logical(job: Job) -> Iterator[str]:
    part = {name: _part(job, name, "logical_gpu.py") for name in ("1", "2", "3", "changing")}
    with ExitStack() as stack:
        for name, one in part.items():
            stack.callback(one.kill)
            one.environment.update(FIXED)
            if name != "changing":
                one.run(int(name), int(name), extra=WITH)
        yield _join_and_kill(part["changing"])
        for one in part.values():
            one.ends()
    found = {name: _digests(one) for name, one in part.items()}
    for name, states in found.items():
        differ = [step for step in states if states[step] != found["1"].get(step)]
        if differ or states.keys() != found["1"].keys():
            raise Failed(f"{name} differs from one worker from step {min(differ, default=0)} on")
    yield f"the same state of {len(found['1'])} steps with 1, 2, 3 workers and in that job"


def _join_and_kill(job: Job) -> str:
    """Start with two workers, let a third one join, kill one; return what was seen."""
    slow = job.folder / "slow"
    job.folder.mkdir(parents=True, exist_ok=True)
    SLOW.put(slow)
    job.environment[throttle.FILE] = str(slow)
    job.run(2, 3, extra=WITH)
    job.trains(2, steps=1)
    job.edl("scale", job.name, "--np", "3")
    job.trains(3, steps=1)
    before = job.steps()
    victim = random.Random(1).choice(sorted(before))
    os.kill(victim, signal.SIGKILL)
    survivors = {pid: step for pid, step in before.items() if pid != victim}
    took = job.recovers(survivors)
    at = max(step.number for step in survivors.values())
    job.trains(3, steps=1)
    slow.unlink()
    return f"a join, a kill in step {at + 1} (next step {took:.2f} s after), another join"


def _digests(job: Job) -> dict[int, str]:
    try:
        found = digests(job.folder / "out")
    except AssertionError as difference:
        raise Failed(f"workers of {job.name} differ: {difference}") from None
    if len(set(found.values())) != STEPS:
        raise Failed(f"{job.name} has {len(found)} of {STEPS} steps, or equal ones")
    return found


def logical_costs(job: Job) -> Iterator[str]:
    """Compare a step of logical workers with one of the same microbatches, in turns."""
    for workers in (1, 2):
        yield _costs(job, workers)


def _costs(job: Job, workers: int) -> str:
    micro_batch, warm, block, blocks = (64, 10, 10, 6) if job.device == "cuda" else (2, 2, 3, 2)
    turns = job.folder / f"turns{workers}"
    turns.mkdir(parents=True)
    words = ["--turns", str(turns), "--micro-batch", str(micro_batch), "--logical", str(LOGICAL)]
    words += ["--warm", str(warm), "--block", str(block), "--blocks", str(blocks)]
    part: dict[str, Job] = {}
    with ExitStack() as stack:
        for kind, extra in KINDS.items():
            one = _part(job, f"{kind}{workers}", "logical_costs.py")
            part[kind] = one
            stack.callback(one.kill)
            one.run(workers, workers, *words, "--name", kind, extra=extra)
        for kind, one in part.items():
            one.wait("the first block", _all_done(turns / f"{kind}.0.*.done", workers))
        for turn in range(blocks):
            for kind in sorted(part, reverse=turn % 2 == 1):
                (turns / f"{kind}.{turn}.go").touch()
                end = turns / f"{kind}.{turn + 1}.*.done"
                part[kind].wait(f"the end of block {turn}", _all_done(end, workers))
        for one in part.values():
            one.ends()
    took = {kind: _medians(one) for kind, one in part.items()}
    free = took["free"]
    ratios = sorted(took["logical"][turn] / free[turn] for turn in range(blocks))
    sends = [
        float(line)
        for path in (part["logical"].folder / "out").glob("sends.*")
        for line in path.read_text().split()[warm:]
    ]
    return (
        f"{workers} workers: {_ms(free.values())} without, {_ms(took['logical'].values())} with "
        f"logical workers, {_ms(sends)} of it in collectives; ratio "
        f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    )


def _ms(seconds: Iterable[float]) -> str:
    return f"{1e3 * statistics.median(seconds):.1f} ms"


def _part(job: Job, name: str, script: str) -> Job:
    """Return a further job for the scenario of ``job``, in a subfolder of its own."""
    folder = job.folder / name
    return replace(job, name=f"{job.name}-{name}", folder=folder, script=script, environment={})


def _all_done(files: Path, workers: int) -> Callable[[object], bool]:
    """Return a condition: as many files match a pattern as there are workers."""
    return lambda _: len(list(files.parent.glob(files.name))) == workers


def _medians(job: Job) -> dict[int, float]:
    """Return the median step of each block of a job, over its workers, without the first two."""
    steps: dict[int, list[float]] = {}
    for path in (job.folder / "out").glob("blocks.*"):
        for line in path.read_text().splitlines():
            block, *took = line.split()
            steps.setdefault(int(block), []).extend(map(float, took[2:]))
    return {block: statistics.median(took) for block, took in steps.items() if block >= 0}
