"""`edl hints`: tell a scheduler outside of edl how fast a job trains."""

from __future__ import annotations

import json

import typer

from edl.cli.cluster.table import throughput_text
from edl.cli.common import ClusterJobArgument, ClusterOption, JsonOption, ZooKeeperOption
from edl.cluster.client.client import Cluster
from edl.cluster.status import SchedulerHints


def hints(
    job: ClusterJobArgument,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Show how fast a job of a cluster trains, as another scheduler needs it.

    With --json also in the words of AdaptDL's jobs, in `sched_hints`.
    """
    found = Cluster(cluster, zookeeper).hints(job)
    if as_json:
        typer.echo(json.dumps(found.to_json()))
        return
    for line in hint_lines(found):
        typer.echo(line)


def hint_lines(found: SchedulerHints) -> list[str]:
    """Return what is known of a job as lines for people."""
    most = "any number" if found.max is None else str(found.max)
    only = f", only {', '.join(map(str, found.sizes))}" if found.sizes else ""
    noise, left = found.noise_scale, found.samples_left
    return [
        f"workers      {found.min} to {most}{only}; it asks for {found.np}",
        f"samples/s    {throughput_text(found.throughput)}",
        f"noise scale  {'not known' if noise is None else f'{noise:,.0f} samples'}",
        f"left         {'not known' if left is None else f'{left:,.0f} samples'}",
    ]
