"""What the death of a worker costs the others: how long they stand still, and what they redo.

Three workers train; one is killed with -9, or stopped with SIGSTOP, at no particular moment of its
step: *suspended*, as its agent sees it in /proc, or *frozen*, where the agent is told not to look.
A *survivor* trains before and after. Its gap is the longest time between two completed steps from
its last one before the fault until the first one in the ring without the victim. A step is *redone*
when a survivor completes a number that is not above all that it has completed before.

Stock Horovod bars the host of a dead worker, so its job runs on two "hosts", both this machine,
and the victim is the only worker of the second one. edl replaces its workers by itself: several
faults in one job, each when three are back and warm. The parts of a recovery are those that edl
tells in its event log, of the survivor that stood still longest.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt
import psutil

from benchmarks import parts
from benchmarks.jobs import SECOND_HOST, EdlJob, Job, Steps, StockJob, host_of

WORKERS = 3
WARM = 40  # steps of each worker in the full ring before a fault
BASELINE = 30  # the last of them: the median step is taken from these
SETTLED = 15  # steps of each survivor after it
RECOVERY_S = 120.0

PLAIN, LEADER, FROZEN = "worker killed", "leader killed", "worker frozen"
SUSPENDED = "worker suspended"
SESSION_S = 2.0  # EDL_SESSION_TIMEOUT_S for those that are frozen
GLOO_S = 5  # for stock, beside Horovod's own 30

# What is done by turns: scenario -> settings of stock, (faults, settings) of edl's jobs.
STOCK: dict[str, dict[str, str]] = {
    "stock": {},
    f"stock, {GLOO_S} s": {"HOROVOD_GLOO_TIMEOUT_SECONDS": str(GLOO_S)},
}
_QUICK = {"EDL_BACKOFF_MAX_S": "1"}  # replacements come sooner; no part of what is measured
EDL: tuple[tuple[tuple[str, ...], dict[str, str]], ...] = (
    ((PLAIN, LEADER, PLAIN, LEADER), _QUICK),
    ((SUSPENDED, SUSPENDED), _QUICK),
    (
        (FROZEN, FROZEN),
        _QUICK | {"EDL_SESSION_TIMEOUT_S": f"{SESSION_S:g}", "EDL_SUSPENDED_S": "0"},
    ),
)


@dataclass(frozen=True)
class Crash:
    """One fault. Times in seconds."""

    gap_s: float  # the longest gap of all survivors
    median_step_s: float  # before the fault, in the full ring
    redone: int  # steps, the most of any survivor
    gaps_s: Mapping[int, float]  # of each survivor, by process id
    parts_s: Mapping[str, float]  # of the slowest survivor; empty for stock Horovod


def stock(job: StockJob, module: str) -> Crash:
    """Kill the one worker on the second host."""
    try:
        job.start(module, WORKERS)
        _warm(job, after=None)
        pids = job.steps().keys()
        victim = next(p for p in pids if host_of(p) == SECOND_HOST)
        killed_s = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        return crash(_survivors(job, victim, killed_s), killed_s)
    finally:
        job.stop()


def edl(job: EdlJob, module: str, faults: Sequence[str]) -> Iterator[tuple[str, Crash]]:
    """Do ``faults`` (PLAIN, LEADER, SUSPENDED, FROZEN) one after the other to a job of three."""
    struck_s = None
    try:
        job.start(module, WORKERS)
        for fault in faults:
            _warm(job, struck_s)
            members = job.members()
            victim = members.leader if fault == LEADER else members.others[0]
            _warm(job, time.monotonic(), BASELINE)  # the question has cost the machine something
            struck_s = time.monotonic()
            stops = fault in (SUSPENDED, FROZEN)
            os.kill(victim, signal.SIGSTOP if stops else signal.SIGKILL)
            survivors = _survivors(job, victim, struck_s)
            slowest_parts = parts.slowest(
                job.printed("events"),
                lambda switch, before=members.generation: switch["generation"] > before,
                parts.REPAIR,
            )
            yield fault, crash(survivors, struck_s, slowest_parts)
    finally:
        job.stop()


def crash(
    survivors: Iterable[Steps], struck_s: float, parts_s: Mapping[str, float] | None = None
) -> Crash:
    """Compute the cost of a fault at ``struck_s`` from the logs of the workers that trained on."""
    gaps, medians, redone = {}, [], []
    for steps in survivors:
        first = int(np.searchsorted(steps.time_s, struck_s))  # the first step after the fault
        back = _back(steps, struck_s)[0]
        gaps[steps.worker] = float(np.diff(steps.time_s[first - 1 : back + 1]).max())
        full = steps.time_s[:first][steps.size[:first] == WORKERS][-BASELINE:]
        medians.append(float(np.median(np.diff(full))))
        highest = np.maximum.accumulate(steps.step)
        redone.append(int(np.sum(steps.step[first:] <= highest[first - 1 : -1])))
    return Crash(max(gaps.values()), median(medians), max(redone), gaps, parts_s or {})


def _warm(job: Job, after: float | None, steps: int = WARM) -> None:
    """Until three workers have made ``steps`` in a ring of three, ``after`` the last fault."""

    def warm() -> bool:
        logs = [s.size[s.time_s > (after or 0.0)] for s in alive(job)]
        return sum(np.sum(sizes == WORKERS) >= steps for sizes in logs) == WORKERS

    job.wait(warm, f"{steps} steps of {WORKERS} workers")


def alive(job: Job) -> list[Steps]:
    """Return the logs of the workers whose processes live."""
    return [steps for steps in job.steps().values() if psutil.pid_exists(steps.worker)]


def _survivors(job: Job, victim: int, struck_s: float) -> list[Steps]:
    """Return the logs of the workers other than ``victim``, once they train steadily again.

    A survivor has made SETTLED steps in the ring without the victim and passed its old step by
    then.
    """
    others = {steps.worker for steps in alive(job)} - {victim}

    def settled(steps: Steps) -> bool:
        back, before = _back(steps, struck_s), steps.step[steps.time_s <= struck_s]
        return bool(
            len(back) and len(steps.step) - back[0] >= SETTLED and steps.step[-1] > before.max()
        )

    job.wait(
        lambda: all(settled(job.steps()[worker]) for worker in others),
        f"{SETTLED} steps of each survivor",
        RECOVERY_S,
    )
    return [job.steps()[worker] for worker in sorted(others)]


def _back(steps: Steps, struck_s: float) -> npt.NDArray[np.intp]:
    """Return the indices of a survivor's steps after the fault in a ring without the victim."""
    return np.flatnonzero((steps.time_s > struck_s) & (steps.size < WORKERS))
