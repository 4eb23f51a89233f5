"""`edl stop`: end a job cleanly."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Annotated

import typer

from edl.cli.common import JobArgument, ZooKeeperOption, choose_job, connected
from edl.client.waiting import POLL_S, Messages, looks
from edl.coordination.job_store import JobStore
from edl.core.host.agent import STOP_S, Outcome, stop_limit
from edl.core.records import Job, JobState
from edl.errors import CoordinationError
from edl.launch.record import conclude

_SETTLE_S = 1.0  # a job without a host and a worker for this long has nobody to end it


def stop(
    job: JobArgument = None,
    timeout_s: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            help=f"Seconds to wait for the job's end. Default: {2 * STOP_S:g}, and as long as the "
            "last checkpoint may take.",
            show_default=False,
        ),
    ] = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """End a job after the step that runs; returns when it has ended."""
    with connected(zookeeper) as session:
        store = choose_job(session, job)
        _ask(store, STOP_S if timeout_s is None else timeout_s)
        record = _wait(store, timeout_s)
    typer.echo(f"job {record.name} is {record.state}: {record.reason}")


def _ask(store: JobStore, timeout_s: float) -> None:
    """Asking twice does no harm, so an answer of ZooKeeper that is lost is asked for again."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            store.set_job_state(JobState.STOPPING, "edl stop")
        except CoordinationError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(POLL_S)
        else:
            return


def _wait(store: JobStore, timeout_s: float | None) -> Job:
    """Wait until the job has ended; without a process that could end it, we do."""
    messages, what = Messages(), f"stopping job {store.name}"
    job = next(looks(store, STOP_S, what, messages)).job
    limit_s = STOP_S + stop_limit(job) if timeout_s is None else timeout_s
    alone_since: float | None = None
    for snapshot in looks(store, limit_s, what, messages):
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
        elif now - alone_since >= _SETTLE_S:
            reason = f"{record.reason}; none of its processes is alive"
            with suppress(CoordinationError):  # the next look tries again
                conclude(store, Outcome(JobState.STOPPED, reason), snapshot)
    raise AssertionError("looks() ends with an error")
