"""`edl drain`: take one worker out of a job."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from edl.cli.common import ZooKeeperOption, choose_job, connected, worker_number
from edl.core.facts import JobState, Request
from edl.errors import EdlError, UsageError


def drain(
    words: Annotated[
        list[str],
        typer.Argument(metavar="[JOB] WORKER", help="For example: digits w3", show_default=False),
    ],
    timeout_s: Annotated[
        float, typer.Option("--timeout", help="Seconds to wait for the leader's answer.")
    ] = 60.0,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Let one worker leave; the others train on, one fewer.

    The leader answers when the worker leaves with a switch, or why it cannot.
    """
    if len(words) > 2:
        raise UsageError(f"edl drain takes a job and a worker, not {len(words)} words")
    job = words[0] if len(words) == 2 else None
    worker = worker_number(words[-1])
    with connected(zookeeper) as session:
        store = choose_job(session, job)
        record = store.snapshot().job
        if record.state is not JobState.RUNNING:
            raise UsageError(f"cannot drain w{worker}: job {record.name} is {record.state}")
        number = store.add_request(Request("drain", worker))
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            request = store.get_request(number)
            if request.done:
                break
            if store.snapshot().job.state.over:
                raise EdlError(f"w{worker} was not drained: job {record.name} has ended")
            time.sleep(0.1)
        else:
            store.remove_request(number)
            raise EdlError(
                f"no leader of job {record.name} answered within {timeout_s:g} s; the request to "
                f"drain w{worker} is taken back (see `edl status {record.name}`)"
            )
    if not request.accepted:
        raise UsageError(request.outcome)
    typer.echo(request.outcome)
