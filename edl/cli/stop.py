"""`edl stop`: end a job cleanly."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from edl.cli.common import JobArgument, ZooKeeperOption, choose_job, connected
from edl.core.facts import JobState
from edl.errors import EdlError

_SETTLE_S = 1.0  # a job without a host and a worker for this long has nobody to end it


def stop(
    job: JobArgument = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", help="Seconds to wait for the job's end.")
    ] = 60.0,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """End a job after the step that runs; returns when it has ended."""
    with connected(zookeeper) as session:
        store = choose_job(session, job)
        record = store.set_job_state(JobState.STOPPING, "edl stop")
        deadline = time.monotonic() + timeout_s
        alone_since: float | None = None
        while not record.state.over:
            now = time.monotonic()
            snapshot = store.snapshot()
            record = snapshot.job
            if snapshot.hosts or snapshot.members:
                alone_since = None
            else:
                alone_since = now if alone_since is None else alone_since
                if now - alone_since >= _SETTLE_S:
                    reason = f"{record.reason}; none of its processes is alive"
                    record = store.set_job_state(
                        JobState.STOPPED, reason, only_from=(JobState.STOPPING,)
                    )
            if now >= deadline:
                names = [host.name for host in snapshot.hosts] + [m.name for m in snapshot.members]
                raise EdlError(
                    f"job {record.name} has not ended within {timeout_s:g} s; still there: "
                    f"{', '.join(names)}"
                )
            time.sleep(0.1)
    typer.echo(f"job {record.name} is {record.state}: {record.reason}")
