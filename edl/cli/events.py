"""`edl events`: show the event log of a job."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, TypeVar

import typer

from edl.cli.cluster.table import event_line
from edl.cli.common import (
    JobArgument,
    JsonOption,
    MaybeClusterOption,
    ZooKeeperOption,
    console,
)
from edl.cli.following import followed
from edl.client.connection import choose_job, connected
from edl.client.waiting import flat, flat_of_cluster
from edl.cluster.client import waiting
from edl.cluster.client.access import store_of_job
from edl.cluster.lifecycle import ClusterEvent, LifeState
from edl.cluster.store import ClusterStore
from edl.event_text import cost
from edl.events import Event
from edl.host.output import wrapped
from edl.zookeeper.session import Session

E = TypeVar("E")


def events(
    job: JobArgument = None,
    as_json: JsonOption = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job ends.")
    ] = False,
    cluster: MaybeClusterOption = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Show the event log of a job or of a cluster: what has happened, and why.

    Without JOB and with --cluster, or EDL_CLUSTER, it is that of the cluster, with all its jobs.
    """
    with connected(zookeeper) as session:
        of_cluster = store_of_job(session, job, cluster)
        if of_cluster is not None:
            _show_of_cluster(of_cluster, job, as_json, follow)
            return
        store = choose_job(session, job, ended=True)
        width = console().width if console().is_terminal else None
        left_out = LeftOut()

        def look(last: int) -> tuple[bool, list[tuple[int, Event]]]:
            over = store.snapshot().job.state.over  # before the events, so that none is missed
            return over, store.events.read_known(last, left_out)

        _show(
            look,
            lambda _, event: json.dumps(flat(event)) if as_json else aligned(event, width),
            session if follow else None,
        )


class LeftOut:
    """Says of each event that this edl cannot read, once, that it is not shown, and why."""

    def __init__(self) -> None:
        self._said: set[int] = set()

    def __call__(self, number: int, why: str) -> None:
        if number not in self._said:
            self._said.add(number)
            typer.echo(f"edl: event {number} is left out: {why}", err=True)


def _show(
    look: Callable[[int], tuple[bool, list[tuple[int, E]]]],
    text: Callable[[int, E], str],
    session: Session | None,
) -> None:
    """Print events, one a line, the oldest first."""
    last = -1

    def further() -> tuple[bool, list[tuple[int, E]]]:
        return look(last)

    for over, found in [further()] if session is None else followed(further, session):
        for number, event in found:
            last = number
            typer.echo(text(number, event))
        if over:
            return


def _show_of_cluster(store: ClusterStore, job: str | None, as_json: bool, follow: bool) -> None:
    """Print the events of a cluster, or of one of its jobs, one a line, the oldest first."""
    store.nodes.check_administrator(
        "read the events of the cluster (`edl events JOB --cluster ''` shows those of a run)"
    )
    width = console().width if console().is_terminal else None
    left_out = LeftOut()

    def look(last: int) -> tuple[bool, list[tuple[int, ClusterEvent]]]:
        # Read before the events, so that none is missed.
        over = job is not None and store.jobs.get(job).life.state is LifeState.ENDED
        return over, waiting.events(store, job, last, left_out)

    def text(number: int, event: ClusterEvent) -> str:
        if as_json:
            return json.dumps(flat_of_cluster(number, event))
        return event_line(event, width, named=job is None)

    _show(look, text, store.nodes.session if follow else None)


def aligned(event: Event, width: int | None = None) -> str:
    """Return an event as text for people: local time, generation, step, kind, reason and cost."""
    clock = datetime.fromtimestamp(event.time).strftime("%m-%d %H:%M:%S.%f")[:-3]
    columns = f"{clock}  gen {event.generation:<4d} step {event.step:<8d} {event.kind:<18} "
    text = cost(event)
    line = f"{columns}{event.reason}" + (f"  [{text}]" if text else "")
    return line if width is None else wrapped(line, width, len(columns))
