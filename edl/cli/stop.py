"""`edl stop`: end a job after the step that runs."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

import psutil
import typer

from edl import config
from edl.cli.common import JobArgument, ZooKeeperOption
from edl.client import Job
from edl.client.changes import LIMITS
from edl.errors import CoordinationError, UsageError, ZooKeeperUnreachable, some
from edl.host.agent import submitters


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
        typer.echo(Job(job, zookeeper).stop(timeout_s))
    except ZooKeeperUnreachable as error:
        _stop_here(job, timeout_s, error)


def _stop_here(job: str | None, timeout_s: float | None, away: ZooKeeperUnreachable) -> None:
    """End a job while ZooKeeper is away: send SIGTERM to the process of `edl run` on this host."""
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
