"""`edl wait`: wait until a job of a cluster has ended or halted."""

from __future__ import annotations

import json

import typer

from edl.cli.cluster.table import state_line
from edl.cli.common import (
    ClusterJobArgument,
    ClusterOption,
    JsonOption,
    WaitTimeoutOption,
    ZooKeeperOption,
    progress,
)
from edl.cli.ending import complain
from edl.cluster.client.client import Cluster
from edl.cluster.client.waiting import TIMED_OUT, wait_exit_code
from edl.errors import TimedOut


def wait(
    job: ClusterJobArgument,
    timeout_s: WaitTimeoutOption = None,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Wait until a job of a cluster has ended, or a user has halted it.

    Ends with 0 if the job has finished; if it has failed with the exit code of its last run, or 1;
    with 90 if it is halted, 94 if it was deleted, 124 if --timeout is over.
    """
    with progress() as on_message:
        try:
            end = Cluster(cluster, zookeeper).wait(
                job, timeout_s, lambda now: on_message(f"{job}  {state_line(now)}")
            )
        except TimedOut as error:
            complain(error)
            raise typer.Exit(TIMED_OUT) from None
    typer.echo(json.dumps(end.to_json()) if as_json else f"job {job} {state_line(end)}")
    raise typer.Exit(wait_exit_code(end))
