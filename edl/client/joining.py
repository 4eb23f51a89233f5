"""Find the job that `edl run --or-join` joins, or wait until a job of that name can be created."""

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
from edl.core.records import Job, JobState, Snapshot
from edl.errors import AccessDenied, UnknownJob, UsageError

POLL_S = 0.5  # for the end of a job that stops
LIMITS = SupervisorLimits()


def has_finished(session: Session, own: Access, on_message: OnMessage = ignore) -> bool:
    """Return whether a job that was started with this host's secret has finished.

    The end of a job that stops is waited for: it can be started anew then, and not joined now.

    Args:
        session: it belongs to that job afterwards, if there is one.
        own: the name of the job and this host's secret.
        on_message: called with a sentence when there is something to wait for.

    Raises:
        AccessDenied: a job of that name runs, or has finished, with another secret.
    """
    job = _present(session, own)
    if job is not None and job.state is JobState.STOPPING:
        on_message(f"job {job.name} stops; waiting for its end to start it anew")
        deadline = time.monotonic() + LIMITS.stop_limit_s(job) + LIMITS.stop_s
        while job is not None and job.state is JobState.STOPPING and time.monotonic() < deadline:
            time.sleep(POLL_S)
            job = _present(session, own)
    return job is not None and job.state is JobState.FINISHED


def same_job(session: Session, own: Access, spec: JobSpec) -> tuple[JobStore, Snapshot]:
    """Return the job that was started by the same command with the same secret, as it stands.

    Args:
        session: it belongs to that job afterwards.
        own: the name of the job and this host's secret.
        spec: what this host would create. ``np`` and ``resume`` may differ.

    Raises:
        AccessDenied: the job has another secret.
        UsageError: the job was started by another command, in another directory or with other
            settings.
        UnknownJob: there is none.
    """
    store = choose_job(session, own.job, secret=own.secret)
    _check_ours(session, own)
    snapshot = store.snapshot()
    _check_same(snapshot.job, spec)
    return store, snapshot


def _present(session: Session, own: Access) -> Job | None:
    """Return the job of that name, if there is one. Raises as :func:`has_finished`."""
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
    """Refuse a job that another secret of this user opens.

    What this host wrote there would be closed to the job's processes: they would take the job for
    lost.
    """
    if session.access != own:
        raise AccessDenied(
            own.job,
            f"job {own.job} has another secret than this host's EDL_SECRET; with --or-join all "
            "hosts have the same EDL_SECRET, or choose another --job",
        )


def _check_same(running: Job, asked: JobSpec) -> None:
    """Refuse to join a job that was not started by this very command, in this directory."""
    for what, (theirs, mine) in running.spec.differences(asked).items():
        raise UsageError(
            f"job {running.name} runs with {what} {_shown(theirs)}, not {_shown(mine)}; with "
            "--or-join all hosts run the same `edl run`"
        )


def _shown(value: object) -> str:
    if value is None:
        return "none"
    return repr(shlex.join(map(str, value))) if isinstance(value, tuple) else str(value)
