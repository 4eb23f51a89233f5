"""Define how a worker reports the end of its job, and decide how a preempted job has ended.

A job is *preempted* if it was asked to save everything and to end within a bound: by `edl preempt`,
or by SIGTERM to `edl run` with the setting ``preempt_within_s``. The rules:

1. The bound counts from the moment at which a process of the job has read of it. The launchers kill
   every worker that runs when it is over.
2. The workers save for a shorter time (:func:`save_limit_s`), so that they end by themselves.
3. A save that is not complete within that time is dropped. The checkpoint before it stays complete,
   and :func:`halted` names it.
4. The job has ended in the state STOPPED, with exit code 96 if its last step was saved, else 97.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from edl.core.plural import counted
from edl.core.records import Job, JobState

HALTED_EXIT = 96  # of a preempted job whose last step was saved, and of its workers
UNSAVED_EXIT = 97  # of a preempted job whose last steps were not saved
END_S = 3.0  # for the processes to end after the last save
END_SHARE = 0.25  # of the bound at most
LOOK_SHARE = 1 / 3  # of that time, to look up the newest checkpoint


@dataclass(frozen=True)
class JobEnd:
    """The end of a job, as a worker reports it for the job's record."""

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
    """Return for how many seconds a job that is preempted within `within_s` seconds may save."""
    return within_s - min(END_S, END_SHARE * within_s)


def look_limit_s(within_s: float) -> float:
    """Return how long a worker whose last save failed may look up the newest checkpoint."""
    return LOOK_SHARE * (within_s - save_limit_s(within_s))


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


def halted(cause: str, step: int, saved_step: int | None, directory: str, why: str = "") -> JobEnd:
    """Return the end of a job that was preempted."""
    # `saved_step` is of the newest complete checkpoint. -1: there is none. None: the directory
    # cannot be read, or has one of an earlier start.
    if saved_step is not None and saved_step >= max(0, step):
        reason = f"{cause}: step {saved_step} is saved in {directory}; `edl run --resume` goes on"
        return JobEnd(JobState.STOPPED, reason, HALTED_EXIT)
    why = why or f"no checkpoint of step {step} was written in time"
    if saved_step is None:
        reason = (
            f"{cause}: {why}; the newest intact checkpoint in {directory} is not known now; "
            "`edl run --resume` goes on from it"
        )
        return JobEnd(JobState.STOPPED, reason, UNSAVED_EXIT)
    if saved_step < 0:
        reason = f"{cause}: {why}, and there is no checkpoint before it; the job has to begin again"
        return JobEnd(JobState.STOPPED, reason, UNSAVED_EXIT)
    again = counted(step - saved_step, "step")
    reason = (
        f"{cause}: {why}; the newest complete checkpoint is of step {saved_step} in {directory}, "
        f"and `edl run --resume` goes on from it and trains {again} again"
    )
    return JobEnd(JobState.STOPPED, reason, UNSAVED_EXIT)
