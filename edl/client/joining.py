"""Find the job that `edl run --or-join` joins, or wait until a job of that name can be created.

With ``--or-join`` all hosts run the same command: the first creates the job, the others join it.
:func:`has_finished` waits, :func:`same_job` finds the job.
"""

from __future__ import annotations

import shlex
import time

from edl.client.connection import choose_job
from edl.client.waiting import OnMessage, ignore
from edl.coordination.access import Access
from edl.coordination.job_store import JobStore
from edl.coordination.session import Session
from edl.core.host.supervision import SupervisorLimits
from edl.core.job_spec import JobSpec
from edl.core.records import Job, JobState
from edl.core.snapshot import Snapshot
from edl.errors import AccessDenied, UnknownJob, UsageError

POLL_S = 0.5  # for the end of a job that stops
LIMITS = SupervisorLimits()


def has_finished(session: Session, own: Access, on_message: OnMessage = ignore) -> bool:
    """Return whether the job that `own` names, started with its secret, has trained to its end."""
    job = _present(session, own)
    # It cannot be joined, but started again after its end.
    if job is not None and job.state is JobState.STOPPING:
        on_message(f"job {job.name} stops; waiting for its end to start it anew")
        deadline = time.monotonic() + LIMITS.stop_limit_s(job) + LIMITS.stop_s
        while job is not None and job.state is JobState.STOPPING and time.monotonic() < deadline:
            time.sleep(POLL_S)
            job = _present(session, own)
    return job is not None and job.state is JobState.FINISHED


def same_job(session: Session, own: Access, spec: JobSpec) -> tuple[JobStore, Snapshot]:
    """Return the records, and a snapshot of them, of a job that the same command started."""
    store = choose_job(session, own.job, secret=own.secret)
    _check_ours(session, own)
    snapshot = store.snapshot()
    _check_same(snapshot.job, spec)
    return store, snapshot


def _present(session: Session, own: Access) -> Job | None:
    """Return the record of the job that `own` names, running or ended; None if there is none."""
    try:
        job = choose_job(session, own.job, secret=own.secret).snapshot().job
    except AccessDenied:
        raise
    except UnknownJob:
        return None
    if not job.state.over or job.state is JobState.FINISHED:  # any other is replaced
        _check_ours(session, own)
    return job


def _check_ours(session: Session, own: Access) -> None:
    """Raise AccessDenied if the session has opened the job with another secret than this host's."""
    # With its own secret this host would write nodes that the job's processes could not read: they
    # would think that ZooKeeper had lost the job.
    if session.access != own:
        raise AccessDenied(
            own.job,
            f"job {own.job} has another secret than this host's EDL_SECRET; with --or-join all "
            "hosts have the same EDL_SECRET, or choose another --job",
        )


def _check_same(running: Job, asked: JobSpec) -> None:
    """Raise UsageError if a job has another command, directory, sizes or settings."""
    for what, (theirs, mine) in running.spec.differences(asked).items():
        raise UsageError(
            f"job {running.name} runs with {what} {_shown(theirs)}, not {_shown(mine)}; with "
            "--or-join all hosts run the same `edl run`"
        )


def _shown(value: object) -> str:
    """Return `value`, of a job's specification, as text for an error message; "none" for None."""
    if value is None:
        return "none"
    return repr(shlex.join(map(str, value))) if isinstance(value, tuple) else str(value)
