"""`edl queue`: divide the slots of a cluster among queues, by quota and weight."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from edl.cli.common import ClusterOption, JsonOption, ZooKeeperOption
from edl.cli.tables import columns, print_table
from edl.cluster.client.client import Cluster
from edl.cluster.queues import QueueStatus

NO_LIMIT = 0  # as `--max 0`

app = typer.Typer(
    help="Queues of a cluster, each with guaranteed slots and a share of the others.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the queue.", show_default=False)
]


@app.command("set")
def set_queue(
    name: NameArgument,
    quota: Annotated[
        int | None,
        typer.Option("--quota", metavar="SLOTS", help="Guaranteed slots.", show_default=False),
    ] = None,
    weight: Annotated[
        float | None,
        typer.Option(
            "--weight", help="Share of the slots that no quota needs.", show_default=False
        ),
    ] = None,
    most: Annotated[
        int | None,
        typer.Option(
            "--max", metavar="SLOTS", help="Never more slots; 0: no limit.", show_default=False
        ),
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option(
            "--tenant",
            metavar="NAME",
            help="Whose jobs may use it; '': nobody's.",
            show_default=False,
        ),
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


@app.command("list")
def list_queues(
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
    zookeeper: ZooKeeperOption = None,
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


@app.command("delete")
def delete_queue(
    name: NameArgument,
    cluster: ClusterOption = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Remove a queue that has no jobs any more."""
    with Cluster(cluster, zookeeper) as client:
        client.queues.delete(name)
        typer.echo(f"queue {name} is deleted from cluster {client.name}")


def queue_table(queues: Sequence[QueueStatus]) -> Table:
    """Return a table for a terminal with a row for each of `queues`."""
    titles = "queue", "quota", "weight", "max", "slots", "surplus", "running", "waiting", "rho"
    table = Table(*columns(*titles), box=box.SIMPLE_HEAD, pad_edge=False)
    for one in queues:
        rho = "-" if one.mean_rho is None else f"{one.mean_rho:.2f}"
        numbers = one.slots, one.surplus, one.running, one.waiting
        most = "-" if one.most is None else str(one.most)
        cells = (str(one.quota), f"{one.weight:g}", most) if one.is_set else ("not set", "1", "-")
        table.add_row(*map(Text, (one.queue, *cells, *map(str, numbers), rho)))
    return table
