"""`edl list`: list the jobs of a cluster, or those of `edl run`."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Annotated

import typer

from edl import config
from edl.cli.common import JsonOption, ZooKeeperOption, console
from edl.client.connection import connected
from edl.client.job import ObservedJobs
from edl.cluster.client.access import NO_CLUSTER, known_access, known_accesses, known_store
from edl.cluster.client.client import STATES, Cluster
from edl.cluster.nodes import cluster_names
from edl.errors import UsageError
from edl.records import JobState
from edl.status import (
    JobSummary,
    hidden_jobs_note,
    newest_jobs,
    summary_lines,
    unreadable_jobs_notes,
)
from edl.text import counted

OWN_STATES: tuple[str, ...] = tuple(JobState)  # of jobs of `edl run`


def list_jobs(
    queue: Annotated[
        str | None,
        typer.Option("--queue", metavar="NAME", help="Only jobs of it.", show_default=False),
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help=f"Only jobs in it. Of a cluster: {', '.join(STATES)}. Of `edl run`: "
            f"{', '.join(OWN_STATES)}.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="NAME",
            help="Jobs of this cluster. Default: EDL_CLUSTER, else the only one whose secret is "
            "known here; without one, jobs of `edl run`. '': jobs of `edl run`.",
            show_default=False,
        ),
    ] = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """List the jobs of a cluster, or those of `edl run`, each with its state and the reason.

    Jobs of a cluster are listed in the order of submission. Of the jobs of `edl run`, the running
    ones are listed first, then the newest. Of the jobs that have ended, only the newest are listed;
    --state and --json list all of them. With --json, one line for each job.
    """
    if queue is None and not (cluster or (config.load().cluster and cluster != NO_CLUSTER)):
        with connected(zookeeper) as session:
            if cluster == NO_CLUSTER or known_store(session, None) is None:
                jobs = ObservedJobs(session)
                found = jobs.read()
                names = cluster_names(session) if not found and cluster != NO_CLUSTER else ()
                if names and not known_accesses(session, names, None):
                    known_access(session, None)  # raises the error that names them
                _show_own(found, jobs, state, as_json)
                return
    _show_of_cluster(Cluster(cluster or None, zookeeper), queue, state, as_json)


def _show_own(
    found: Sequence[JobSummary], jobs: ObservedJobs, state: str | None, as_json: bool
) -> None:
    """Print the jobs of `edl run`, one a line, those that run first."""
    if state is not None and state not in OWN_STATES:
        raise UsageError(f"there is no state {state!r}; use one of {', '.join(OWN_STATES)}")
    chosen = [job for job in found if state in (None, job.state)]
    unreadable = unreadable_jobs_notes(jobs.unreadable)
    if as_json:
        for job in chosen:
            typer.echo(json.dumps(job.to_json()))
        for note in unreadable:
            typer.echo(f"edl: {note}", err=True)
        return
    shown, more = newest_jobs(chosen) if state is None else (chosen, 0)
    width = console().width if console().is_terminal else None
    if not shown and not unreadable:
        such = f"job is {state}" if state else "job is known here; start one with `edl run`"
        typer.echo(f"no {such}")
    for line in summary_lines(shown, time.time(), width) if shown else ():
        typer.echo(line)
    if more:
        typer.echo(hidden_jobs_note(more, "edl list --json"))
    for note in unreadable:
        typer.echo(note)
    if jobs.locked:
        typer.echo(f"{counted(jobs.locked, 'job')} not shown: the secret is not known here")


def _show_of_cluster(cluster: Cluster, queue: str | None, state: str | None, as_json: bool) -> None:
    """Print the jobs of `cluster`, one a line, in the order of submission."""
    from edl.cli.cluster.table import job_table, newest_ended  # PyYAML

    with cluster:
        jobs, name = cluster.list(queue, state), cluster.name
        has_controller = None if as_json else cluster.has_controller()
    if as_json:
        for job in jobs:
            typer.echo(json.dumps(job.to_json()))
        return
    if not jobs:
        such = " such" if queue or state else ""
        typer.echo(f"cluster {name} has no{such} jobs")
        return
    shown, more = newest_ended(jobs) if state is None else (jobs, 0)
    width = console().width if console().is_terminal else None
    for line in job_table(shown, time.time(), width):
        typer.echo(line.rstrip())
    if more:
        typer.echo(hidden_jobs_note(more, "edl list --state ended"))
    if has_controller is False and not all(job.is_over for job in jobs):
        typer.echo(
            f"no controller of cluster {name} runs: jobs train on, none starts or changes, and the "
            f"reasons are of before; start one with `edl cluster start --name {name}`"
        )
