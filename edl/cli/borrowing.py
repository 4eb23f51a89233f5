"""`edl borrow` and `edl reclaim`: let a job use idle slots for a while, and take them back."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from edl.cli.common import JobArgument, ZooKeeperOption, progress
from edl.client import Job
from edl.client.job import RECLAIM_S
from edl.errors import UsageError
from edl.text import seconds

SlotsHost = Annotated[
    str | None,
    typer.Option("--host", help="Only slots of this host.", show_default=False),
]


def borrow(
    slots: Annotated[int, typer.Option("--slots", help="How many.")],
    job: JobArgument = None,
    host: SlotsHost = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Lend a job idle slots of its hosts: it has one worker more for each, until `edl reclaim`.

    It borrows fewer than --slots if fewer are idle, or if its limits allow no more. Returns as
    soon as the request is written into ZooKeeper; `edl events --follow` shows the workers start.
    """
    typer.echo(str(Job(job, zookeeper).borrow(slots, host)))


def reclaim(
    slots: Annotated[
        int | None,
        typer.Option(
            "--slots", help="How many. Default: all that are borrowed.", show_default=False
        ),
    ] = None,
    within: Annotated[
        str, typer.Option("--within", metavar="TIME", help="Until they have to be free.")
    ] = f"{RECLAIM_S:g}s",
    job: JobArgument = None,
    host: SlotsHost = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Take borrowed slots back from a job; returns when they are free. No trained sample is lost.

    The workers in these slots leave with a planned switch. A worker that has not left shortly
    before the time is over is killed, and the others train on. Ctrl-C does not take the request
    back.
    """
    deadline_s = seconds(within)
    if deadline_s is None:
        raise UsageError(f"--within {within} is no time; write it as 30s, or 2m")
    try:
        with progress() as on_message:
            done = Job(job, zookeeper).reclaim(slots, deadline_s, host, on_message)
    except KeyboardInterrupt as end:
        notes = getattr(end, "__notes__", [])
        if not notes:  # nothing was changed
            raise
        print(f"edl: {'; '.join(notes)}", file=sys.stderr)
        raise typer.Exit(130) from None
    typer.echo(str(done))
