"""`edl show`: show all that is known of a job of a cluster."""

from __future__ import annotations

import json
import time

import typer

from edl.cli.cluster.table import details_text
from edl.cli.common import (
    ClusterJobArgument,
    ClusterOption,
    JsonOption,
    ZooKeeperOption,
    console,
)
from edl.cluster.client.client import Cluster


def show(
    job: ClusterJobArgument,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Show a job of a cluster: its state, slots by host, runs, manifest and history."""
    details = Cluster(cluster, zookeeper).show(job)
    if as_json:
        typer.echo(json.dumps(details.to_json()))
        return
    width = console().width if console().is_terminal else None
    typer.echo(details_text(details, time.time(), width))
