"""`edl events`: show the event log of a job."""

from __future__ import annotations

import json
import time
from datetime import datetime
from typing import Annotated

import typer

from edl.cli.common import FOLLOW_S, JobArgument, JsonOption, ZooKeeperOption, console
from edl.client.connection import choose_job, connected
from edl.client.events import flat
from edl.core.event_text import cost
from edl.core.events import Event
from edl.launch.output import wrapped


def events(
    job: JobArgument = None,
    as_json: JsonOption = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job ends.")
    ] = False,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Show the event log of a job, the oldest event first: what has happened, and why."""
    with connected(zookeeper) as session:
        store = choose_job(session, job, ended=True)
        last, width = -1, console().width if console().is_terminal else None
        while True:
            over = store.snapshot().job.state.over  # before the events, so that none is missed
            for number, event in store.events.read(last):
                last = number
                typer.echo(json.dumps(flat(event)) if as_json else aligned(event, width))
            if over or not follow:
                return
            time.sleep(FOLLOW_S)


def aligned(event: Event, width: int | None = None) -> str:
    """Return an event as text for people: local time, generation, step, kind, reason and cost.

    The cost, which only a switch has, is how long workers stood still. The text is one line, or
    several if it is wider than ``width``.

    Args:
        event: the event.
        width: the width of the terminal in columns: the reason is broken at words, and its further
            lines are indented to its column. None for no breaks.
    """
    clock = datetime.fromtimestamp(event.time).strftime("%H:%M:%S.%f")[:-3]
    columns = f"{clock}  gen {event.generation:<4d} step {event.step:<8d} {event.kind:<18} "
    text = cost(event)
    line = f"{columns}{event.reason}" + (f"  [{text}]" if text else "")
    return line if width is None else wrapped(line, width, len(columns))
