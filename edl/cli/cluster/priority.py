"""`edl priority`: change the priority of a job of a cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from edl.cli.common import ClusterJobArgument, ClusterOption, ZooKeeperOption
from edl.cluster.client.client import Cluster

# So that a negative priority is no option.
COMMAND = {"context_settings": {"ignore_unknown_options": True}}


def priority(
    job: ClusterJobArgument,
    number: Annotated[
        int, typer.Argument(metavar="N", help="The new priority.", show_default=False)
    ],
    cluster: ClusterOption = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Change the priority of a job of a cluster; jobs of a higher one get slots first."""
    Cluster(cluster, zookeeper).priority(job, number)
    typer.echo(f"job {job} has priority {number}")
