"""`edl preempt`: save everything of a job within a bound, and end it, to go on elsewhere."""

from __future__ import annotations

from typing import Annotated

import typer

from edl.cli.common import JobArgument, ZooKeeperOption
from edl.client import Job
from edl.client.changes import PREEMPT_WITHIN_S
from edl.errors import UsageError
from edl.text import seconds


def preempt(
    job: JobArgument = None,
    within: Annotated[
        str,
        typer.Option("--within", metavar="TIME", help="Until all its workers have ended."),
    ] = f"{PREEMPT_WITHIN_S:g}s",
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Save everything of a job within a bound and end it; `edl run --resume` goes on elsewhere.

    Workers that run at the end of the bound are killed. `edl run` ends with 96, or with 97 if the
    last steps could not be saved within the bound: then this command fails, and names the newest
    complete checkpoint, which is never touched.
    """
    within_s = seconds(within)
    if not within_s:
        raise UsageError(f"--within {within} is no time; write it as 30s, or 2m")
    typer.echo(Job(job, zookeeper).preempt(within_s, on_message=_warn))


def _warn(sentence: str) -> None:
    typer.echo(f"edl: {sentence}", err=True)
