"""`edl list`: list the jobs of a cluster."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from edl.cli.cluster.table import job_table, left_out, newest_ended
from edl.cli.common import ClusterOption, JsonOption, ZooKeeperOption, console
from edl.client.cluster.client import STATES, Cluster


def list_jobs(
    queue: Annotated[
        str | None,
        typer.Option("--queue", metavar="NAME", help="Only jobs of it.", show_default=False),
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help=f"Only jobs in it: {', '.join(STATES)}.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """List the jobs of a cluster, in the order of submission, each with its state and the reason.

    Of the jobs that have ended, only the newest are listed; --state and --json list all of them.
    With --json, one line for each job.
    """
    with Cluster(cluster, zookeeper) as client:
        jobs, name = client.list(queue, state), client.name
    if as_json:
        for job in jobs:
            typer.echo(json.dumps(job.to_json()))
        return
    if not jobs:
        such = " such" if queue or state else ""
        typer.echo(f"cluster {name} has no{such} jobs")
        return
    shown, more = newest_ended(jobs) if state is None else (jobs, 0)
    width = console().width if console().is_terminal else None
    for line in job_table(shown, time.time(), width):
        typer.echo(line.rstrip())
    if more:
        typer.echo(left_out(more))
