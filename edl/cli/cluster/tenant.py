"""`edl tenant`: let teams use a cluster that see and steer own jobs only."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edl import config
from edl.cli.common import ClusterOption, ZooKeeperOption
from edl.cluster.client.client import Cluster
from edl.text import counted
from edl.zookeeper.access import CLUSTERS, replace_file

app = typer.Typer(
    help="Tenants of a cluster, who may submit, see and steer own jobs only.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the tenant.", show_default=False)
]


@app.command()
def create(
    name: NameArgument,
    cluster: ClusterOption = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Make a tenant, and write its secret into a file that only you can read.

    Give the file to the tenant, who names it with --secret-file or EDL_SECRET_FILE.
    """
    with Cluster(cluster, zookeeper) as client:
        where = client.name
        path = _path(where, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, [client.tenants.create(name)])
    typer.echo(f"tenant {name} of cluster {where} is made; its secret is in {path}")
    typer.echo(f"give it a queue: edl queue set QUEUE --quota SLOTS --tenant {name}")
    typer.echo(f"and a host that runs its jobs as a user: edl host --user {name}=USER --slots N")


@app.command("list")
def list_tenants(cluster: ClusterOption = None, zookeeper: ZooKeeperOption = None) -> None:
    """List the tenants of a cluster."""
    with Cluster(cluster, zookeeper) as client:
        found, where = client.tenants.list(), client.name
    for name in found:
        typer.echo(name)
    if not found:
        typer.echo(f"cluster {where} has no tenants")


@app.command()
def delete(
    name: NameArgument,
    cluster: ClusterOption = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Remove a tenant; its secret opens nothing any more.

    Its jobs, ended ones included, its secrets and its queues must have been deleted before.
    """
    with Cluster(cluster, zookeeper) as client:
        left = client.tenants.delete(name)
        where = client.name
    _path(where, name).unlink(missing_ok=True)
    typer.echo(f"tenant {name} is removed from cluster {where}")
    if left:
        typer.echo(
            f"its inbox keeps {counted(left, 'node')}, below which the tenant has made others; its "
            "name stays taken"
        )


def _path(cluster: str, tenant: str) -> Path:
    return config.state_dir() / CLUSTERS / cluster / "tenants" / tenant
