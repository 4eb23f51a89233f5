"""End a running job: after a step (:func:`stop`), or saved within a bound (:func:`preempt`).

Both write the request into the job's record, and wait until its processes have ended.
"""

from __future__ import annotations

import time
from contextlib import suppress

from edl.client.waiting import USUAL, ClientLimits, Messages, OnMessage, ignore, looks, running
from edl.coordination.job_store import JobStore
from edl.coordination.observations import conclude
from edl.core.events import CheckpointDetails
from edl.core.host.job_end import stopped_outcome
from edl.core.host.supervision import SupervisorLimits
from edl.core.job.ending import HALTED_EXIT, why_tight
from edl.core.records import Job, JobState
from edl.errors import CoordinationError, RequestError, UsageError

LIMITS = SupervisorLimits()
PREEMPT_WITHIN_S = 30.0
NEWEST_EVENTS = 200  # among which the last save is looked for


def stop(store: JobStore, timeout_s: float | None = None, limits: ClientLimits = USUAL) -> str:
    """Let a job end after the step that runs; return a sentence about how it has ended.

    A job that has ended already is not changed: the sentence is about that end.

    Args:
        store: the records of the job.
        timeout_s: the time to wait for the end, in seconds; None for ``LIMITS.stop_s`` more than
            the job itself has for its stop, a last checkpoint included.
        limits: the time limits of the request.

    Raises:
        CoordinationError: ZooKeeper is away, and the job may be told to stop or not.
        TimedOut: the job has not ended in that time; it still ends as soon as it can.
    """
    ask_s = LIMITS.stop_s if timeout_s is None else timeout_s
    _request(store, ask_s, "edl stop", limits=limits)
    return _sentence(_wait(store, timeout_s, limits))


def preempt(
    store: JobStore,
    within_s: float,
    timeout_s: float | None = None,
    on_message: OnMessage = ignore,
) -> str:
    """Let a job save everything and end within a bound; return a sentence about what is saved.

    Args:
        store: the records of the job.
        within_s: the bound, in seconds, until which the job saves and all its workers have ended;
            the launchers then kill every worker that still runs.
        timeout_s: the time to wait for the end, in seconds; None for ``LIMITS.stop_s`` more than
            the bound.
        on_message: called with a sentence if the bound is probably too short.

    Raises:
        UsageError: the bound is not positive, the job does not run, or it has no checkpoint to go
            on from. Nothing was changed.
        RequestError: the job has ended without a checkpoint of its last step; the message names the
            newest complete one.
        CoordinationError: ZooKeeper is away, and the job may be told to end or not.
        TimedOut: the job has not ended after ``timeout_s``; it goes on ending.
    """
    if not within_s > 0:
        raise UsageError(f"a job cannot save within {within_s:g} s; give it more")
    if store.snapshot().job.state is not JobState.STOPPING:  # else it is about to end
        _check_checkpoint(running(store, f"preempt job {store.name}").job)
        _warn_of_bound(store, within_s, on_message)
        _request(store, within_s, f"edl preempt --within {within_s:g}s", end_within_s=within_s)
    limit_s = within_s + LIMITS.stop_s if timeout_s is None else timeout_s
    ended = _wait(store, limit_s)
    if ended.state is not JobState.STOPPED or ended.exit_code != HALTED_EXIT:
        raise RequestError(ended.name, _sentence(ended))
    return _sentence(ended)


def _sentence(ended: Job) -> str:
    """Return how a job has ended and why."""
    return f"job {ended.name} {ended.state.phrase}: {ended.reason}"


def _check_checkpoint(job: Job) -> None:
    """Raise an error unless ``job`` has a checkpoint to go on from.

    Raises:
        UsageError: it has none.
    """
    if job.saved_step < 0:
        raise UsageError(
            f"job {job.name} has no checkpoint, so all that it has trained would be lost: let "
            "its script call edl.checkpoint(directory), or end it by `edl stop`"
        )


def _warn_of_bound(store: JobStore, within_s: float, on_message: OnMessage) -> None:
    """Say that a bound of ``within_s`` seconds is probably too short, by the job's last save.

    Nothing is said if none of the newest events tells of a save.
    """
    saves = [
        one.details
        for one in store.events.newest(NEWEST_EVENTS, None)
        if isinstance(one.details, CheckpointDetails)
    ]
    if saves and (why := why_tight(within_s, saves[-1].capture_s + saves[-1].write_s)):
        on_message(why)


def _request(
    store: JobStore,
    timeout_s: float,
    reason: str,
    end_within_s: float = 0.0,
    limits: ClientLimits = USUAL,
) -> None:
    """Write into the job's record that the job is to stop; try again while ZooKeeper is away.

    The record of a job that does not run any more is not changed.

    Args:
        store: the records of the job.
        timeout_s: the time in seconds after which it gives up with an error.
        reason: why the job is to stop.
        end_within_s: the bound, in seconds, within which the job is to save and end, because it
            is preempted; 0: it is only stopped.
        limits: has the time between two tries, ``poll_s``.

    Raises:
        CoordinationError: ZooKeeper is away for longer than ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            store.set_job_state(JobState.STOPPING, reason, end_within_s=end_within_s)
        except CoordinationError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(limits.poll_s)
        else:
            return


def _wait(store: JobStore, timeout_s: float | None, limits: ClientLimits = USUAL) -> Job:
    """Wait until the job has ended, and return its record.

    If none of the job's processes has been registered for ``limits.settle_s`` seconds, this
    function itself writes STOPPED into the record.

    Args:
        store: the records of the job.
        timeout_s: the time to wait, in seconds; None for ``LIMITS.stop_s`` more than the job itself
            has for its stop, a last checkpoint included.
        limits: the time limits of the request.

    Raises:
        TimedOut: the job has not ended in that time.
    """
    messages, what = Messages(), f"stopping job {store.name}"
    job = next(looks(store, LIMITS.stop_s, what, messages, limits=limits)).job
    limit_s = LIMITS.stop_s + LIMITS.stop_limit_s(job) if timeout_s is None else timeout_s
    alone_since: float | None = None
    for snapshot in looks(store, limit_s, what, messages, "it goes on ending", limits):
        record, now = snapshot.job, time.monotonic()
        if record.state.over:
            return record
        there = [host.name for host in snapshot.hosts] + [m.name for m in snapshot.members]
        there += [f"the edl-worker of slot {s.host}:{s.slot}" for s in snapshot.slots]
        messages(f"still there: {', '.join(there) or 'nobody'}")
        if there:
            alone_since = None
        elif alone_since is None:
            alone_since = now
        elif now - alone_since >= limits.settle_s:
            reason = f"{record.reason}; none of its processes is alive"
            with suppress(CoordinationError):  # the next look tries again
                conclude(store, stopped_outcome(snapshot, reason), snapshot)
    raise AssertionError("looks() ends with an error")
