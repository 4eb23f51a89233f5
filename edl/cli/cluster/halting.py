"""`edl halt`, `edl resume`: say what is wanted of a job of a cluster."""

from __future__ import annotations

import typer

from edl.cli.common import ClusterJobArgument, ClusterOption, ZooKeeperOption
from edl.cluster.client.client import Cluster


def halt(
    job: ClusterJobArgument,
    cluster: ClusterOption = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Let a job of a cluster stop with a checkpoint and give its slots to others.

    Returns as soon as that is written into ZooKeeper; `edl wait` waits for it. `edl resume` lets
    the job go on.
    """
    Cluster(cluster, zookeeper).halt(job)
    typer.echo(f"job {job} is to halt")


def resume(
    job: ClusterJobArgument,
    cluster: ClusterOption = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Let a halted job of a cluster go on from its newest checkpoint when it gets slots."""
    Cluster(cluster, zookeeper).resume(job)
    typer.echo(f"job {job} is to run")
