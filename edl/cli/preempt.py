"""`edl preempt`: save everything of a job within a bound, and end it, to go on elsewhere."""

from __future__ import annotations

from typing import Annotated

import typer

from edl.cli.common import JobArgument, ZooKeeperOption
from edl.cli.stop import LIMITS, ask_to_stop, wait_for_end
from edl.client.connection import choose_job, connected
from edl.client.waiting import running
from edl.coordination.job_store import JobStore
from edl.core.duration import seconds
from edl.core.events import CheckpointDetails
from edl.core.job.ending import HALTED_EXIT, why_tight
from edl.core.records import Job, JobState
from edl.errors import RequestError, UsageError

WITHIN_S = 30.0
NEWEST_EVENTS = 200  # among which the last save is looked for


def preempt(
    job: JobArgument = None,
    within: Annotated[
        str,
        typer.Option("--within", metavar="TIME", help="Until all its workers have ended."),
    ] = f"{WITHIN_S:g}s",
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
    with connected(zookeeper) as session:
        store = choose_job(session, job)
        if store.snapshot().job.state is not JobState.STOPPING:  # else it is about to end
            _check(store)
            _warn(store, within_s)
            reason = f"edl preempt --within {within_s:g}s"
            ask_to_stop(store, within_s, reason, end_within_s=within_s)
        record = wait_for_end(store, within_s + LIMITS.stop_s)
    _show(record)


def _check(store: JobStore) -> None:
    """Raise an error unless the job runs and has a checkpoint to go on from.

    Raises:
        UsageError: it does not run, or it has no checkpoint.
    """
    record = running(store, f"preempt job {store.name}").job
    if record.saved_step < 0:
        raise UsageError(
            f"job {record.name} has no checkpoint, so all that it has trained would be lost: let "
            "its script call edl.checkpoint(directory), or end it by `edl stop`"
        )


def _warn(store: JobStore, within_s: float) -> None:
    """Print to standard error if the bound is probably too short, by the job's last save.

    Nothing is printed if none of the newest events tells of a save. ``within_s`` is the bound, in
    seconds.
    """
    saves = [
        one.details
        for one in store.events.newest(NEWEST_EVENTS, None)
        if isinstance(one.details, CheckpointDetails)
    ]
    if saves and (why := why_tight(within_s, saves[-1].capture_s + saves[-1].write_s)):
        typer.echo(f"edl: {why}", err=True)


def _show(record: Job) -> None:
    """Print how the job has ended.

    Raises:
        RequestError: it has ended without a checkpoint of its last step.
    """
    sentence = f"job {record.name} {record.state.phrase}: {record.reason}"
    if record.state is not JobState.STOPPED or record.exit_code != HALTED_EXIT:
        raise RequestError(record.name, sentence)
    typer.echo(sentence)
