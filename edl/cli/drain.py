"""`edl drain`: take one worker out of a job."""

from __future__ import annotations

from typing import Annotated

import typer

from edl.cli.common import ZooKeeperOption, worker_number
from edl.client import Job
from edl.client.job import ANSWER_S
from edl.errors import UsageError


def drain(
    words: Annotated[
        list[str],
        typer.Argument(metavar="[JOB] WORKER", help="For example: digits w3", show_default=False),
    ],
    timeout_s: Annotated[
        float, typer.Option("--timeout", help="Seconds to wait for the leader's answer.")
    ] = ANSWER_S,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Let one worker leave; the others train on, one fewer.

    The leader answers when the worker leaves with a switch, or why it cannot.
    """
    if len(words) > 2:
        raise UsageError(f"edl drain takes a job and a worker, not {len(words)} words")
    job = words[0] if len(words) == 2 else None
    typer.echo(Job(job, zookeeper).drain(worker_number(words[-1]), timeout_s))
