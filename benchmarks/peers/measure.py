"""What an event costs a job, by one definition for all systems.

The workers of all systems take each step together, and each of them logs the steps that it has
completed. The *gap* of an event is the longest time in which no worker of the job completed a step,
from the last step before the event until the job trains steadily again. So it also measures a
system that starts all workers anew. *In force* is the time from a request to the first step in the
new size, *replaced* that from a kill to the first step of the new worker. A step is *redone* if as
many workers as trained it complete it once more.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from benchmarks import goodput
from benchmarks.jobs import BenchmarkError, Job, Steps
from benchmarks.peers.jobs import PeerJob

WARM = 60  # steps of each worker before an event ...
QUIET = 20  # ... and at least between what finds the process to strike, and the signal
SETTLED = 20  # new steps after it
WATCHED_S = 10.0  # after the coordinator's death: workers may train on until they notice it
START_S = 120.0
JOIN, LEAVE, KILL = "a worker joins, 2 to 3", "a worker leaves, 3 to 2", "a worker is killed (-9)"
COORDINATOR, FREEZE = "the coordinator is killed (-9)", "a worker freezes (SIGSTOP)"
STRIKES = {FREEZE: signal.SIGSTOP, KILL: signal.SIGKILL, COORDINATOR: signal.SIGKILL}


@dataclass(frozen=True)
class Outcome:
    """What an event cost. Times in seconds.

    Attributes:
        gap_s: the longest time without a completed step; None if the job did not train on.
        until_s: until a resize was in force or the killed worker was replaced; None if it was not,
            or is not looked at.
        redone: the number of steps that were redone.
        why: why a time is None, as a clause; empty otherwise.
    """

    gap_s: float | None
    until_s: float | None = None
    redone: int = 0
    why: str = ""


@dataclass(frozen=True)
class Session:
    """What one repetition found of one system. Times in seconds.

    Attributes:
        start_s: from the start of the launcher to the first step of both workers.
        step_s: the median step of two workers; of three: ``step_of_3_s``, NaN if none joined.
        outcomes: by event, of those that were looked at.
    """

    start_s: float
    step_s: float
    step_of_3_s: float
    outcomes: dict[str, Outcome]


def measure(
    make: Callable[[], PeerJob], module: str, patience_s: float, say: Callable[[str], None]
) -> Session:
    """Run one repetition of all events.

    Args:
        make: makes a job, not started.
        module: the training script.
        patience_s: how long a job may stand still after a kill or a freeze.
        say: is told of each outcome.

    Raises:
        BenchmarkError: a job has not started, or does not train with all its workers.
    """
    job = make()
    with _stopping(job):
        found = _resizes(job, module, say)
    outcomes = dict(found.outcomes)
    for event in STRIKES:
        job = make()
        with _stopping(job):
            job.start(module, 3)
            _warm(job, 3, time.monotonic())
            outcomes[event] = strike(job, event, patience_s)
            say(f"{job.kind}, {event}: {outcomes[event]}")
    return replace(found, outcomes=outcomes)


def measure_resizes(
    job: PeerJob, module: str, say: Callable[[str], None], *arguments: str
) -> Session:
    """Run one repetition of a join and a leave.

    Args:
        job: not started.
        module: the training script.
        say: is told of each outcome.
        *arguments: of the script.

    Raises:
        BenchmarkError: the job has not started, or does not train with all its workers.
    """
    with _stopping(job):
        return _resizes(job, module, say, *arguments)


def measure_quickly(
    job: PeerJob,
    module: str,
    patience_s: float,
    say: Callable[[str], None],
    strikes: Sequence[str],
) -> Session:
    """Run some events once, all on one job.

    Args:
        job: not started.
        module: the training script.
        patience_s: how long the job may stand still after a kill or a freeze.
        say: is told of each outcome.
        strikes: events of ``STRIKES``, after a join and a leave; those after one that the job does
            not survive are left out.

    Raises:
        BenchmarkError: the job has not started, or does not train with all its workers.
    """
    with _stopping(job):
        found = _resizes(job, module, say)
        outcomes = dict(found.outcomes)
        for event in strikes:
            if None in (one.gap_s for one in outcomes.values()):
                break
            outcomes[event] = strike(job, event, patience_s, 2)
            say(f"{job.kind}, {event}: {outcomes[event]}")
    return replace(found, outcomes=outcomes)


def _resizes(job: PeerJob, module: str, say: Callable[[str], None], *arguments: str) -> Session:
    """Start a job of two workers, let one join, and one leave if that one trains."""
    start_s, step_s = _start(job, module, *arguments)
    step_of_3_s = math.nan
    outcomes: dict[str, Outcome] = {}
    for event, size in ((JOIN, 3), (LEAVE, 2)):
        asked_s = time.monotonic()
        outcomes[event] = resize(job, size)
        say(f"{job.kind}, {event}: {outcomes[event]}")
        if outcomes[event].gap_s is None:
            break
        if event == JOIN:
            step_of_3_s = _warm(job, 3, asked_s, SETTLED)
    return Session(start_s, step_s, step_of_3_s, outcomes)


def _start(job: PeerJob, module: str, *arguments: str) -> tuple[float, float]:
    """Start a job of two workers; return the seconds to its first step, and its median step.

    Args:
        job: not started.
        module: the training script.
        *arguments: of the script.
    """
    began_s = time.monotonic()
    job.start(module, 2, *arguments)
    _until(job, lambda logs: _steps_in(logs, 2, began_s) >= 1, "first steps")
    start_s = max(log.time_s[0] for log in job.steps().values()) - began_s
    return start_s, _warm(job, 2, began_s)


@contextmanager
def _stopping(job: PeerJob) -> Iterator[None]:
    try:
        yield
    finally:
        job.stop()


def resize(job: PeerJob, size: int) -> Outcome:
    """Ask a job for another size, and wait until it trains with it.

    Args:
        job: trains with another size, and all its workers have made ``WARM`` steps.
        size: the new size.
    """
    logs = list(job.steps().values())
    redone_before = goodput.redone(logs)
    asked_s = time.monotonic()
    job.resize(size)
    try:
        _until(
            job, lambda logs: _steps_in(logs, size, asked_s) >= SETTLED, f"steps of {size} workers"
        )
    except BenchmarkError:
        return _stands_still(job, START_S)
    logs = list(job.steps().values())
    gap, redone = gap_s(logs, asked_s, time.monotonic()), goodput.redone(logs) - redone_before
    first_s = min(
        float(log.time_s[new][0])
        for log in logs
        if np.any(new := (log.time_s > asked_s) & (log.size == size))
    )
    return Outcome(gap, first_s - asked_s, redone)


def strike(job: PeerJob, event: str, patience_s: float, size: int = 3) -> Outcome:
    """Send a signal to a process of a job, and wait until the job trains on.

    Args:
        job: trains.
        event: which of ``STRIKES``.
        patience_s: how long the job may stand still, and how long to wait for a replacement.
        size: the number of its workers.
    """
    pid = job.coordinator_pid() if event == COORDINATOR else job.victim()
    _warm(job, size, time.monotonic(), QUIET)  # to find the process has cost the machine something
    before = job.steps()
    redone_before = goodput.redone(list(before.values()))
    struck_s = time.monotonic()
    os.kill(pid, STRIKES[event])
    highest = 0

    def goes_on(logs: Sequence[Steps]) -> bool:
        new = {int(s) for log in logs for s in log.step[log.time_s > struck_s] if s > highest}
        return len(new) >= SETTLED

    try:
        if event == COORDINATOR:
            job.wait(lambda: time.monotonic() > struck_s + WATCHED_S, f"{WATCHED_S:g} s of steps")
        highest = max(int(log.step.max()) for log in job.steps().values())
        _until(job, goes_on, f"{SETTLED} new steps", patience_s)
    except BenchmarkError:
        return _stands_still(job, patience_s)
    logs = list(job.steps().values())
    gap = gap_s(logs, struck_s, time.monotonic())
    until_s, why = None, ""
    if event == KILL:
        try:
            _until(job, lambda _: bool(_newcomers(job, before)), "replacement", patience_s)
            until_s = min(float(log.time_s[0]) for log in _newcomers(job, before)) - struck_s
        except BenchmarkError:
            why = f"not replaced in {patience_s:g} s"
    logs = list(job.steps().values())
    return Outcome(gap, until_s, goodput.redone(logs) - redone_before, why)


def _stands_still(job: Job, waited_s: float) -> Outcome:
    """Return the outcome for a job that did not train on in so many seconds."""
    if job.ended is not None:
        return Outcome(None, why="the job ends")
    return Outcome(None, why=f"not within {waited_s:g} s")


def gap_s(logs: Iterable[Steps], since_s: float, until_s: float) -> float:
    """Return the longest time without a completed step, in seconds.

    It is looked for from the last step before ``since_s`` to the last one before ``until_s``.
    """
    times = np.sort(np.concatenate([log.time_s for log in logs]))
    first = max(0, int(np.searchsorted(times, since_s)) - 1)
    last = int(np.searchsorted(times, until_s))
    return float(np.diff(times[first:last]).max())


def _newcomers(job: PeerJob, before: dict[int, Steps]) -> list[Steps]:
    return [log for worker, log in job.steps().items() if worker not in before]


def _steps_in(logs: Iterable[Steps], size: int, since_s: float) -> int:
    """Return the fewest steps that any of the ``size`` busiest workers made in that size.

    Steps count that were completed after ``since_s``. 0 if fewer workers made one.
    """
    counts = [int(np.sum((log.time_s > since_s) & (log.size == size))) for log in logs]
    return sorted(counts, reverse=True)[size - 1] if len(counts) >= size else 0


def _warm(job: PeerJob, size: int, since_s: float, steps: int = WARM) -> float:
    """Wait for so many steps of ``size`` workers after ``since_s``; return their median."""
    _until(job, lambda logs: _steps_in(logs, size, since_s) >= steps, f"{steps} steps of {size}")
    return min(
        float(np.median(np.diff(log.time_s[(log.time_s > since_s) & (log.size == size)])))
        for log in job.steps().values()
        if np.sum((log.time_s > since_s) & (log.size == size)) >= steps
    )


def _until(
    job: PeerJob,
    condition: Callable[[Sequence[Steps]], bool],
    what: str,
    timeout_s: float = START_S,
) -> None:
    job.wait(lambda: condition(list(job.steps().values())), what, timeout_s)
