"""`edl queue`, `edl tenant`, `edl secret`: what a cluster's administrator sets."""

from __future__ import annotations

import getpass
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from edl import config
from edl.cli.common import ClusterOption, JsonOption, ZooKeeperOption, columns, print_table
from edl.cluster.client.client import Cluster
from edl.cluster.queues import QueueStatus
from edl.cluster.store import MAX_BYTES
from edl.errors import UsageError
from edl.text import counted, rounded, verb
from edl.zookeeper.access import CLUSTERS, replace_file

QueueArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the queue.")]


def set_queue(
    name: QueueArgument,
    quota: Annotated[
        int | None, typer.Option("--quota", metavar="SLOTS", help="Guaranteed slots.")
    ] = None,
    weight: Annotated[
        float | None, typer.Option("--weight", help="Share of the slots that no quota needs.")
    ] = None,
    most: Annotated[
        int | None, typer.Option("--max", metavar="SLOTS", help="Never more slots; 0: no limit.")
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option("--tenant", metavar="NAME", help="Whose jobs may use it; '': nobody's."),
    ] = None,
    cluster: ClusterOption = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Create a queue, or change it; what is not given stays as it is.

    A new queue has the quota 0, the weight 1 and no limit. From the first queue on, each job must
    name one by `queue:` in its manifest.
    """
    with Cluster(cluster, zookeeper) as client:
        now = client.queues.set(name, quota, weight, most, tenant)
        typer.echo(f"queue {name} of cluster {client.name}: {now}")
        if warning := client.queues.overbooked():
            typer.echo(warning)


def list_queues(
    as_json: JsonOption = False, cluster: ClusterOption = None, zookeeper: ZooKeeperOption = None
) -> None:
    """List the queues of a cluster, with the slots and jobs that each has now."""
    with Cluster(cluster, zookeeper) as client:
        found, where = client.queues.list(), client.name
    if as_json:
        for one in found:
            typer.echo(json.dumps(one.to_json()))
    elif found:
        print_table(queue_table(found))
    else:
        typer.echo(f"cluster {where} has no queues: all jobs share its slots")


def delete_queue(
    name: QueueArgument, cluster: ClusterOption = None, zookeeper: ZooKeeperOption = None
) -> None:
    """Remove a queue that has no jobs any more."""
    with Cluster(cluster, zookeeper) as client:
        client.queues.delete(name)
        typer.echo(f"queue {name} is deleted from cluster {client.name}")


def queue_table(queues: Sequence[QueueStatus]) -> Table:
    titles = "queue", "quota", "weight", "max", "slots", "surplus", "running", "waiting", "rho"
    table = Table(*columns(*titles), box=box.SIMPLE_HEAD, pad_edge=False)
    for one in queues:
        rho = "-" if one.mean_rho is None else f"{one.mean_rho:.2f}"
        numbers = one.slots, one.surplus, one.running, one.waiting
        most = "-" if one.most is None else str(one.most)
        cells = (str(one.quota), f"{one.weight:g}", most) if one.is_set else ("not set", "1", "-")
        table.add_row(*map(Text, (one.queue, *cells, *map(str, numbers), rho)))
    return table


TenantArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the tenant.")]


def create_tenant(
    name: TenantArgument, cluster: ClusterOption = None, zookeeper: ZooKeeperOption = None
) -> None:
    """Make a tenant, and write its secret into a file that only you can read.

    Give the file to the tenant, who names it with --secret-file or EDL_SECRET_FILE.
    """
    with Cluster(cluster, zookeeper) as client:
        where = client.name
        path = _secret_path(where, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, [client.tenants.create(name)])
    typer.echo(f"tenant {name} of cluster {where} is made; its secret is in {path}")
    typer.echo(f"give it a queue: edl queue set QUEUE --quota SLOTS --tenant {name}")
    typer.echo(f"and a host that runs its jobs as a user: edl host --user {name}=USER --slots N")


def list_tenants(cluster: ClusterOption = None, zookeeper: ZooKeeperOption = None) -> None:
    """List the tenants of a cluster."""
    with Cluster(cluster, zookeeper) as client:
        found, where = client.tenants.list(), client.name
    for name in found:
        typer.echo(name)
    if not found:
        typer.echo(f"cluster {where} has no tenants")


def delete_tenant(
    name: TenantArgument, cluster: ClusterOption = None, zookeeper: ZooKeeperOption = None
) -> None:
    """Remove a tenant; its secret opens nothing any more.

    Its jobs, ended ones included, its secrets and its queues must have been deleted before.
    """
    with Cluster(cluster, zookeeper) as client:
        left = client.tenants.delete(name)
        where = client.name
    _secret_path(where, name).unlink(missing_ok=True)
    typer.echo(f"tenant {name} is removed from cluster {where}")
    if left:
        typer.echo(
            f"its inbox keeps {counted(left, 'node')}, below which the tenant has made others; its "
            "name stays taken"
        )


def _secret_path(cluster: str, tenant: str) -> Path:
    return config.state_dir() / CLUSTERS / cluster / "tenants" / tenant


SecretArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the secret.")]


def set_secret(
    name: SecretArgument,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            metavar="PATH",
            help="Its content, unchanged. Default: standard input, without a newline at its end.",
        ),
    ] = None,
    cluster: ClusterOption = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Give a secret to a cluster, or replace it. Never write its value on a command line.

    A job whose manifest has `secrets: [NAME]` reads it from the file NAME in the directory
    EDL_SECRETS_DIR. A new value counts for what starts after that.
    """
    if file is not None:
        try:
            with file.open("rb") as opened:
                content = opened.read(MAX_BYTES + 1)
        except OSError as error:
            raise UsageError(f"cannot read {file}: {error.strerror}") from None
    elif sys.stdin is None:  # the parent has closed it
        raise UsageError("standard input is closed; give the value by --file")
    elif sys.stdin.isatty():
        content = getpass.getpass(f"Value of the secret {name}: ").encode()
    else:
        content = sys.stdin.buffer.read(MAX_BYTES + 2).removesuffix(b"\n")
    with Cluster(cluster, zookeeper) as client:
        client.secrets.set(name, content)
        typer.echo(f"secret {name} is set in cluster {client.name}")


def list_secrets(
    as_json: JsonOption = False, cluster: ClusterOption = None, zookeeper: ZooKeeperOption = None
) -> None:
    """List the secrets of a cluster, without their values."""
    with Cluster(cluster, zookeeper) as client:
        found, where = client.secrets.list(), client.name
    if as_json:
        for one in found:
            typer.echo(json.dumps({"name": one.name, "set_s": one.set_s, "by": one.by}))
        return
    if not found:
        typer.echo(f"cluster {where} has no secrets")
    width = max((len(one.name) for one in found), default=0)
    for one in found:
        ago = rounded(time.time() - one.set_s)
        typer.echo(f"{one.name.ljust(width)}  set {ago} ago by {one.by}")


def delete_secret(
    name: SecretArgument, cluster: ClusterOption = None, zookeeper: ZooKeeperOption = None
) -> None:
    """Remove a secret from a cluster. A job that asks for it waits when it is to start."""
    with Cluster(cluster, zookeeper) as client:
        asking = client.secrets.delete(name)
        typer.echo(f"secret {name} is deleted from cluster {client.name}")
    if asking:
        jobs = counted(len(asking), "job")
        typer.echo(f"{jobs} {verb(len(asking), 'asks', 'ask')} for it: {', '.join(asking)}")
