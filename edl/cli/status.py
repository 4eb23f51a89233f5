"""`edl status`: who leads, who trains, how far."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from edl.cli.common import (
    FOLLOW_S,
    JobArgument,
    JsonOption,
    ZooKeeperOption,
    choose_job,
    connected,
    console,
)
from edl.client.status import summary
from edl.errors import CoordinationError

GIVEN_UP_SHOWN = 3  # workers; the newest


def status(
    job: JobArgument = None,
    as_json: JsonOption = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show it again twice a second until the job ends.")
    ] = False,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Show who leads, who trains, and how far the job is."""
    with connected(zookeeper) as session:
        store = choose_job(session, job, ended=True)
        facts: dict[str, Any]
        if not watch:
            facts = summary(store.snapshot(), session.hosts)
            if as_json:
                typer.echo(json.dumps(facts))
            else:
                console().print(table(facts))
            return
        facts = {}
        with Live(console=console(), auto_refresh=False) as live:
            while True:
                try:
                    facts = summary(store.snapshot(), session.hosts)
                except CoordinationError as error:
                    if not facts:
                        raise
                    facts["away"] = str(error)  # the rest is as it was last known
                if as_json:
                    typer.echo(json.dumps(facts))
                else:
                    live.update(table(facts), refresh=True)
                if facts["state"] in ("finished", "stopped", "failed"):
                    return
                time.sleep(FOLLOW_S)


def table(facts: Mapping[str, Any]) -> RenderableType:
    """The same for people."""
    head = Table.grid(padding=(0, 2))
    head.add_column(style="bold")
    head.add_column()
    state = facts["state"] + (f": {facts['reason']}" if facts["reason"] else "")
    total = facts["epoch_total"]
    # A script that keeps its own place in its data has no epochs that are known here.
    epoch = (
        f"epoch {facts['epoch']}: {facts['epoch_done']} of {total} samples "
        f"({facts['epoch_done'] / total:.0%}), "
        if total
        else ""
    )
    planned = ", ".join(
        f"{host}: {count}"
        for host, count in facts["plan"].items()
        if count or host in facts["hosts"]  # not one that has left
    )
    rows = {
        "job": facts["job"],
        "state": state,
        "leader": f"{facts['leader'] or 'nobody'}, term {facts['term']}",
        "workers": f"{facts['world_size']} of {sum(facts['plan'].values())} wanted ({planned}); "
        f"{facts['sizes']}; generation {facts['generation']}",
        "progress": f"{epoch}step {facts['step']}, {facts['samples_per_s']:.0f} samples/s",
        "ZooKeeper": facts["zookeeper"] + (f", away: {facts['away']}" if facts["away"] else ""),
    }
    for worker, reason in list(facts["given_up"].items())[-GIVEN_UP_SHOWN:]:
        rows[f"{worker} given up"] = reason
    for slot, reason in facts["slots_given_up"].items():
        rows[f"slot {slot} given up"] = reason
    for name, value in rows.items():
        head.add_row(name, Text(str(value)))
    if not facts["members"]:
        return head
    members = Table("worker", "rank", "stage", "host", "pid", box=box.SIMPLE_HEAD, pad_edge=False)
    by_rank = sorted(facts["members"], key=lambda m: (m["rank"] is None, m["rank"] or 0, m["id"]))
    for member in by_rank:
        mark = " (leads)" if member["id"] == facts["leader"] else ""
        rank = "-" if member["rank"] is None else str(member["rank"])
        members.add_row(
            member["id"] + mark, rank, member["stage"], member["host"], str(member["pid"])
        )
    return Group(head, members)
