"""Define a run of a job: its token, who writes its records again if they are lost, and its end.

A run is one start of a job. A job that is stopped and started again under its name is another run.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from edl.errors import UsageError
from edl.records import Generation, Job, JobState
from edl.text import counted

_TOKEN = re.compile(r"[0-9a-f]{16,64}")

_ENDED = {
    JobState.FINISHED: "it has finished",
    JobState.STOPPED: "it was stopped",
    JobState.FAILED: "it has failed",
}


def check_run_token(run: str) -> str:
    if _TOKEN.fullmatch(run) is None:
        raise UsageError(
            f"{run!r} cannot be the token of a run: give 16 to 64 lower-case hexadecimal digits, "
            "such as Python's uuid.uuid4().hex"
        )
    return run


def why_run_is_over(job: Job, run: str, current: str) -> str:
    over = f"run {run} of job {job.name} is over"
    if run != current:
        return f"{over}: run {current} has taken its place"
    # A job that stops can be joined: its workers on this host may need an agent to end them.
    if not job.state.over:
        return ""
    return f"{over}: {_ENDED[job.state]} ({job.reason or 'no reason given'})"


# ------------------------------------------------------------
# Which process writes the records of a job again after ZooKeeper has lost them: a worker that knows
# the newest generation, as with an older one the next would get a number that is already in use.
# The workers try in the order of their ranks; if none of the ring is left, a launcher does after
# `LAUNCHER_S`.


TURN_S, TURNS = 0.1, 50  # each of the first TURNS ranks begins TURN_S later than the one before
LAUNCHER_S = 10.0  # a launcher waits this long for the workers to write the job
PATIENCE_S = 60.0  # a process that cannot write the job takes it for removed after this time


def restore_delay_s(worker: int, generation: Generation | None) -> float:
    rank = None if generation is None else generation.rank_of(worker)
    # A worker without a rank waits the longest.
    return TURN_S * min(TURNS, 0 if generation is None else TURNS if rank is None else rank)


def may_restore(worker: int, generation: Generation | None, evicted: Collection[int]) -> bool:
    return worker not in evicted and (generation is None or generation.knows(worker))


def is_newest(generation: Generation | None, known_to_others: Iterable[int]) -> bool:
    number = 0 if generation is None else generation.number
    return all(known <= number for known in known_to_others)


# ------------------------------------------------------------
# A job is *preempted* if it was asked to save everything and to end within a bound: by `edl
# preempt`, or by SIGTERM to `edl run` with `preempt_within_s`. The bound counts from when a process
# of the job has read of it; when it is over, the launchers kill every worker that runs. The workers
# save for a shorter time (`save_limit_s`), so that they end by themselves; a save that is not
# complete by then is dropped, and the checkpoint before it stays complete. The job is STOPPED, with
# code 96 if its last step was saved, else 97.


HALTED_EXIT = 96  # of a preempted job whose last step was saved, and of its workers
UNSAVED_EXIT = 97  # of a preempted job whose last steps were not saved
END_S = 3.0  # for the processes to end after the last save
END_SHARE = 0.25  # of the bound at most
LOOKUP_SHARE = 1 / 3  # of that time, to look up the newest checkpoint


@dataclass(frozen=True)
class JobEnd:
    state: JobState
    reason: str
    exit_code: int = 0  # of `edl run`
    finished_in: int = 0  # the generation whose ring has trained to the end; 0: none has


@dataclass(frozen=True)
class Preemption:
    """The bound within which a worker of a preempted job has to save and end."""

    cause: str  # what preempts the job, such as "edl preempt --within 30s"
    within_s: float
    save_until_s: float  # when a checkpoint must be complete, by the worker's monotonic clock


def save_limit_s(within_s: float) -> float:
    return within_s - min(END_S, END_SHARE * within_s)


def lookup_limit_s(within_s: float) -> float:
    return LOOKUP_SHARE * (within_s - save_limit_s(within_s))


def why_tight(within_s: float, saved_in_s: float) -> str:
    """Return a sentence that says that a bound is probably too short; empty: it is not."""
    limit_s = save_limit_s(within_s)
    if saved_in_s <= limit_s:
        return ""
    return (
        f"the newest checkpoint took {saved_in_s:.1f} s to save, and a bound of {within_s:g} s "
        f"leaves {limit_s:g} s for the last one; if that is not complete in time, the job goes on "
        "from the newest one"
    )


def bound_of_signal(job: Job, number: signal.Signals) -> float:
    """Return the bound within which a signal to its launcher preempts `job`; 0.0: it stops it."""
    # Ctrl-C or the end of a terminal only stop a job, and so does any signal to a job that has no
    # checkpoint to go on from.
    within_s = job.spec.settings.preempt_within_s
    preempts = number not in (signal.SIGINT, signal.SIGHUP) and job.saved_step >= 0
    return within_s if preempts and within_s is not None else 0.0


def halted(
    cause: str, step: int, saved_step: int | None, directory: str, problem: str = ""
) -> JobEnd:
    # `saved_step` is of the newest complete checkpoint. -1: there is none. None: the directory
    # cannot be read, or has one of an earlier start.
    if saved_step is not None and saved_step >= max(0, step):
        reason = f"{cause}: step {saved_step} is saved in {directory}; `edl run --resume` goes on"
        return JobEnd(JobState.STOPPED, reason, HALTED_EXIT)
    reason = f"{cause}: {problem or f'no checkpoint of step {step} was written in time'}"
    if saved_step is None:
        reason += f"; the newest intact checkpoint in {directory} is not known now; "
        reason += "`edl run --resume` goes on from it"
    elif saved_step < 0:
        reason += ", and there is no checkpoint before it; the job has to begin again"
    else:
        reason += f"; the newest complete checkpoint is of step {saved_step} in {directory}, and "
        reason += "`edl run --resume` goes on from it and trains "
        reason += f"{counted(step - saved_step, 'step')} again"
    return JobEnd(JobState.STOPPED, reason, UNSAVED_EXIT)
