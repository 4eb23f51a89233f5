"""The commands that change a running job: scale, migrate, drain, stop, preempt, borrow, ..."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Annotated

import typer

from edl import config
from edl.cli.common import (
    JobArgument,
    MaybeClusterOption,
    ZooKeeperOption,
    duration,
    interruptible,
    progress,
    worker_number,
)
from edl.client.changes import LIMITS, PREEMPT_WITHIN_S
from edl.client.connection import choose_job, connected
from edl.client.job import ANSWER_S, RECLAIM_S, TIMEOUT_S, Job
from edl.errors import CoordinationError, UsageError, ZooKeeperUnreachable, some
from edl.zookeeper.nodes import delete_ended, unknown_job


def scale(
    np: Annotated[int, typer.Option("-np", "--np", help="Workers wanted.")],
    job: JobArgument = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Let a job grow or shrink to --np workers while it trains.

    Returns as soon as the number is written into ZooKeeper; `edl events --follow` shows it happen.
    """
    typer.echo(str(Job(job, zookeeper).scale(np)))


def migrate(
    source: Annotated[str, typer.Option("--from", metavar="HOST", help="Where they are.")],
    target: Annotated[str, typer.Option("--to", metavar="HOST", help="Where they shall be.")],
    job: JobArgument = None,
    np: Annotated[
        int | None, typer.Option("-np", "--np", help="How many workers. Default: all of the host.")
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
    with interruptible(), progress() as on_message:
        done = Job(job, zookeeper).migrate(source, target, np, timeout_s, on_message)
    typer.echo(str(done))


_WORKER = re.compile(r"w?\d+")


def drain(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[JOB] WORKER | HOST", help="For example: digits w3"),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            "--host",
            help="In place of WORKER: this host leaves the job, with its workers and its agent, "
            "even that of `edl run`.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="NAME",
            help="HOST is one of this cluster. Default: a single word that is no worker (w3, 3) is "
            "a host of the cluster in EDL_CLUSTER, or of the only one whose secret is known here.",
        ),
    ] = None,
    timeout_s: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            help=f"How long to wait for it. Default: {ANSWER_S:g}, with --host {TIMEOUT_S:g}; for "
            "a host of a cluster none: it does not wait.",
        ),
    ] = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Let one worker leave a job, or all workers of a host; the others train on.

    The leader of the job answers that the worker leaves with the next switch, or why it cannot
    leave. A drained HOST of a cluster gives its slots back, and gets no jobs until `edl undrain`.
    """
    named = list(words or ())
    if cluster or (len(named) == 1 and host is None and not _WORKER.fullmatch(named[0])):
        _drain_host_of_cluster(named, host, cluster, zookeeper, timeout_s)
        return
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
        with interruptible():
            answer = job.drain(worker, ANSWER_S if timeout_s is None else timeout_s)
    typer.echo(answer)


def _drain_host_of_cluster(
    words: list[str],
    option: str | None,
    cluster: str | None,
    zookeeper: str | None,
    timeout_s: float | None,
) -> None:
    if len(words) + (option is not None) != 1:
        raise UsageError(
            "edl drain --cluster takes one host, as `edl drain --cluster lab node1`; for a worker "
            "of a job leave --cluster out"
        )
    from edl.cluster.client.access import known_store, knows_clusters
    from edl.cluster.client.client import drain_host  # it takes half as long as all else here

    host = option or words[0]
    if cluster is None and not knows_clusters():
        worker_number(host)  # raises the error that it is none
    with connected(zookeeper) as session:
        store = known_store(session, cluster)
        if store is None:
            raise UsageError(
                f"{host!r} is not a worker (write w3, or 3), and no one cluster is known here "
                "whose host it could be; give --cluster"
            )
        drain_host(store, host, timeout_s)
    left = "" if timeout_s is None else ", and no job has anything there"
    typer.echo(f"host {host} is drained{left}")


SlotsHost = Annotated[str | None, typer.Option("--host", help="Only slots of this host.")]


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
        int | None, typer.Option("--slots", help="How many. Default: all that are borrowed.")
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
    deadline_s = duration("--within", within)
    with interruptible(), progress() as on_message:
        done = Job(job, zookeeper).reclaim(slots, deadline_s, host, on_message)
    typer.echo(str(done))


def stop(
    job: JobArgument = None,
    timeout_s: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            help=f"How long to wait for the job's end. Default: {2 * LIMITS.stop_s:g}, and as long "
            "as the last checkpoint may take.",
        ),
    ] = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """End a job after the step that runs; returns when the job has ended.

    If the time of `--timeout` is over before, it fails, and the job still ends as soon as it can.
    While ZooKeeper is away, it stops the `edl run` of the job if that runs on this host.
    """
    try:
        typer.echo(Job(job, zookeeper).stop(timeout_s))
    except ZooKeeperUnreachable as error:
        _stop_here(job, timeout_s, error)


def _stop_here(job: str | None, timeout_s: float | None, away: ZooKeeperUnreachable) -> None:
    """End a job while ZooKeeper is away: send SIGTERM to the process of `edl run` on this host."""
    import psutil

    from edl.host.agent import submitters

    found = submitters(config.state_dir(), job)
    if not found:
        raise away
    if len(found) > 1:
        raise UsageError(f"{away}; and {some(sorted(found))} run on this host: say which to stop")
    [(name, pid)] = found.items()
    typer.echo(f"ZooKeeper is away; edl run of job {name}, process {pid}, ends it", err=True)
    with suppress(psutil.NoSuchProcess):
        agent = psutil.Process(pid)
        agent.terminate()
        limit_s = 2 * LIMITS.stop_s if timeout_s is None else timeout_s
        try:
            agent.wait(limit_s)
        except psutil.TimeoutExpired:
            raise CoordinationError(
                f"edl run of job {name}, process {pid}, has not ended in {limit_s:g} s; its output "
                "says what it waits for"
            ) from away
    typer.echo(f"edl run of job {name} has ended")


def preempt(
    job: JobArgument = None,
    within: Annotated[
        str, typer.Option("--within", metavar="TIME", help="Until all its workers have ended.")
    ] = f"{PREEMPT_WITHIN_S:g}s",
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Save everything of a job within a bound and end it; `edl run --resume` goes on elsewhere.

    Workers that run at the end of the bound are killed. `edl run` ends with 96, or with 97 if the
    last steps could not be saved within the bound: then this command fails, and names the newest
    complete checkpoint, which is never touched.
    """
    within_s = duration("--within", within)

    def warn(sentence: str) -> None:
        typer.echo(f"edl: {sentence}", err=True)

    typer.echo(Job(job, zookeeper).preempt(within_s, on_message=warn))


def delete(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB...", help="Names of the jobs.")],
    cluster: MaybeClusterOption = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Remove ended jobs from ZooKeeper, with their events. Checkpoints and logs stay.

    A job of `edl run` must have ended. A job of a cluster that has not is stopped with a
    checkpoint, for good, and its records stay until the command is called again.
    """
    from edl.cluster.client.access import store_of_job

    with connected(zookeeper) as session:
        for name in jobs:
            of_cluster = store_of_job(session, name, cluster)
            if of_cluster is not None:
                removed = of_cluster.jobs.delete(name).removed
                what = f"the records of job {name}" if removed else f"job {name}"
                typer.echo(f"{what} will be {'removed' if removed else 'deleted'}")
                continue
            store = choose_job(session, name)
            if not delete_ended(session, store.paths):
                raise unknown_job(session, store.paths)
            typer.echo(f"job {name} is deleted")
