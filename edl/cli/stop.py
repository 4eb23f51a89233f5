"""`edl stop`: end a job after the step that runs."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Annotated

import psutil
import typer

from edl import config
from edl.cli.common import JobArgument, ZooKeeperOption
from edl.client.connection import choose_job, connected
from edl.client.waiting import USUAL, ClientLimits, Messages, looks
from edl.coordination.job_store import JobStore
from edl.core.host.job_end import stopped_outcome
from edl.core.host.supervision import SupervisorLimits
from edl.core.records import Job, JobState
from edl.errors import CoordinationError, UsageError, ZooKeeperUnreachable, some
from edl.launch.record import conclude
from edl.launch.submitter import submitters

LIMITS = SupervisorLimits()


def stop(
    job: JobArgument = None,
    timeout_s: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            help=f"How long to wait for the job's end. Default: {2 * LIMITS.stop_s:g}, and as long "
            "as the last checkpoint may take.",
            show_default=False,
        ),
    ] = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """End a job after the step that runs; returns when the job has ended.

    If the time of `--timeout` is over before, it fails, and the job still ends as soon as it can.
    While ZooKeeper is away, it stops the `edl run` of the job if that runs on this host.
    """
    try:
        with connected(zookeeper) as session:
            store = choose_job(session, job)
            ask_to_stop(store, LIMITS.stop_s if timeout_s is None else timeout_s)
            record = wait_for_end(store, timeout_s)
    except ZooKeeperUnreachable as error:
        _stop_here(job, timeout_s, error)
    else:
        typer.echo(f"job {record.name} {record.state.phrase}: {record.reason}")


def _stop_here(job: str | None, timeout_s: float | None, away: ZooKeeperUnreachable) -> None:
    """End a job while ZooKeeper is away: send SIGTERM to the process of `edl run` on this host.

    That process then tells the workers to stop. The function returns when the process has ended.

    Args:
        job: the name of the job; None for the only one that `edl run` runs on this host.
        timeout_s: the time in seconds to wait for the end of that process; None for twice
            ``LIMITS.stop_s``.
        away: the error that says that ZooKeeper is away, raised if there is no such process.

    Raises:
        ZooKeeperUnreachable: no `edl run` of the job runs on this host.
        UsageError: several run on this host and no job was named.
        CoordinationError: the process has not ended in time.
    """
    found = submitters(config.state_dir(), job)
    if not found:
        raise away
    if len(found) > 1:
        raise UsageError(f"{away}; and {some(sorted(found))} run on this host: say which to stop")
    [(name, pid)] = found.items()
    typer.echo(f"ZooKeeper is away; edl run of job {name}, process {pid}, ends it", err=True)
    with suppress(psutil.NoSuchProcess):
        agent = psutil.Process(pid)
        agent.terminate()
        limit_s = 2 * LIMITS.stop_s if timeout_s is None else timeout_s
        try:
            agent.wait(limit_s)
        except psutil.TimeoutExpired:
            raise CoordinationError(
                f"edl run of job {name}, process {pid}, has not ended in {limit_s:g} s; its output "
                "says what it waits for"
            ) from away
    typer.echo(f"edl run of job {name} has ended")


def ask_to_stop(
    store: JobStore,
    timeout_s: float,
    reason: str = "edl stop",
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


def wait_for_end(store: JobStore, timeout_s: float | None, limits: ClientLimits = USUAL) -> Job:
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
    for snapshot in looks(store, limit_s, what, messages, limits=limits):
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
