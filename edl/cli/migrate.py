"""`edl migrate`: move workers from one host to another while the job trains."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from edl.cli.common import JobArgument, ZooKeeperOption, progress
from edl.client import Job
from edl.client.job import TIMEOUT_S


def migrate(
    source: Annotated[str, typer.Option("--from", metavar="HOST", help="Where they are.")],
    target: Annotated[str, typer.Option("--to", metavar="HOST", help="Where they shall be.")],
    job: JobArgument = None,
    np: Annotated[
        int | None,
        typer.Option(
            "-np", "--np", help="How many workers. Default: all of the host.", show_default=False
        ),
    ] = None,
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout", metavar="SECONDS", help="How long to wait until they have moved."
        ),
    ] = TIMEOUT_S,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Move workers to another host: new ones start there while the old train on.

    Mostly all move in one switch. Returns when they have moved. Ctrl-C or the end of --timeout does
    not end the migration.
    """
    try:
        with progress() as on_message:
            done = Job(job, zookeeper).migrate(source, target, np, timeout_s, on_message)
    except KeyboardInterrupt as end:
        notes = getattr(end, "__notes__", [])
        if not notes:  # nothing was changed
            raise
        print(f"edl: {'; '.join(notes)}", file=sys.stderr)
        raise typer.Exit(130) from None
    typer.echo(str(done))
