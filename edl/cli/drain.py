"""`edl drain`: let one worker, or one host with all its workers, leave a job."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from edl.cli.common import ZooKeeperOption, worker_number
from edl.client import Job
from edl.client.job import ANSWER_S, TIMEOUT_S
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
        float | None,
        typer.Option(
            "--timeout",
            help=f"Seconds to wait for it. Default: {ANSWER_S:g}, with --host {TIMEOUT_S:g}.",
            show_default=False,
        ),
    ] = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Let one worker leave a job, or all workers of a host; the others train on.

    Returns when the leader of the job has answered that the worker leaves with the next switch, or
    why it cannot leave; with --host, when the host has left.
    """
    named = list(words or ())
    if not (host is None) <= len(named) <= 1 + (host is None):
        raise UsageError(
            "edl drain takes a job and a worker, as `edl drain digits w3`, or a job and a host, "
            "as `edl drain digits --host node1`"
        )
    if host is not None:
        job = Job(named[0] if named else None, zookeeper)
        answer = job.drain_host(host, TIMEOUT_S if timeout_s is None else timeout_s)
    else:
        worker = worker_number(named.pop())
        job = Job(named[0] if named else None, zookeeper)
        try:
            answer = job.drain(worker, ANSWER_S if timeout_s is None else timeout_s)
        except KeyboardInterrupt as end:
            message = "; ".join(["interrupted", *getattr(end, "__notes__", [])])
            print(f"edl: {message}", file=sys.stderr)
            raise typer.Exit(130) from None
    typer.echo(answer)
