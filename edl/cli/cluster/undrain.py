"""`edl undrain`: let a host of a cluster have jobs again."""

from __future__ import annotations

from typing import Annotated

import typer

from edl.cli.common import ClusterOption, ZooKeeperOption
from edl.cluster.client.client import Cluster


def undrain(
    host: Annotated[
        str, typer.Argument(metavar="HOST", help="Name of the host.", show_default=False)
    ],
    cluster: ClusterOption = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Let a host of a cluster that was drained have jobs again."""
    Cluster(cluster, zookeeper).hosts.undrain(host)
    typer.echo(f"host {host} may have jobs again")
