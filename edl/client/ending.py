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
    """Let a job end after the step that runs; return a sentence about how it has ended."""
    ask_s = LIMITS.stop_s if timeout_s is None else timeout_s
    _request(store, ask_s, "edl stop", limits=limits)
    return _sentence(_wait(store, timeout_s, limits))


def preempt(
    store: JobStore,
    within_s: float,
    timeout_s: float | None = None,
    on_message: OnMessage = ignore,
) -> str:
    """Let a job save everything and end within a bound; return a sentence about what is saved."""
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
    return f"job {ended.name} {ended.state.phrase}: {ended.reason}"


def _check_checkpoint(job: Job) -> None:
    """Raise an error unless `job` has a checkpoint to go on from."""
    if job.saved_step < 0:
        raise UsageError(
            f"job {job.name} has no checkpoint, so all that it has trained would be lost: let "
            "its script call edl.checkpoint(directory), or end it by `edl stop`"
        )


def _warn_of_bound(store: JobStore, within_s: float, on_message: OnMessage) -> None:
    """Say that a bound of `within_s` seconds is probably too short, by the job's last save."""
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
    """Write into the job's record that the job is to stop; try again while ZooKeeper is away."""
    # `end_within_s` 0: it is only stopped, not preempted.
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
    """Wait until the job has ended, and return its record."""
    messages, what = Messages(), f"stopping job {store.name}"
    job = next(looks(store, LIMITS.stop_s, what, messages, limits=limits)).job
    limit_s = LIMITS.stop_s + LIMITS.stop_limit_s(job) if timeout_s is None else timeout_s
    # When it has no processes, nobody else writes that it has stopped.
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
