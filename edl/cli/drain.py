"""`edl drain`: take one worker, or one host, out of a job."""

from __future__ import annotations

from typing import Annotated

import typer

from edl.cli.common import ZooKeeperOption, worker_number
from edl.client import Job
from edl.client.job import ANSWER_S
from edl.errors import UsageError


def drain(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[JOB] WORKER", help="For example: digits w3", show_default=False),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            "--host",
            help="In place of WORKER: this host leaves the job, with its workers and its agent, "
            "even that of `edl run`.",
            show_default=False,
        ),
    ] = None,
    timeout_s: Annotated[
        float, typer.Option("--timeout", help="Seconds to wait for it.")
    ] = ANSWER_S,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Let one worker leave, or all of a host; the others train on.

    The leader answers when the worker leaves with a switch, or why it cannot.
    """
    named = list(words or ())
    if not (host is None) <= len(named) <= 1 + (host is None):
        raise UsageError(
            "edl drain takes a job and a worker, as `edl drain digits w3`, or a job and a host, "
            "as `edl drain digits --host node1`"
        )
    if host is not None:
        answer = Job(named[0] if named else None, zookeeper).drain_host(host, timeout_s)
    else:
        worker = worker_number(named.pop())
        answer = Job(named[0] if named else None, zookeeper).drain(worker, timeout_s)
    typer.echo(answer)
