"""`edl drain`: let one worker, or one host with all its workers, leave a job or a cluster."""

from __future__ import annotations

import re
import sys
from typing import Annotated

import typer

from edl.cli.common import ZooKeeperOption, worker_number
from edl.client import Job
from edl.client.connection import connected
from edl.client.job import ANSWER_S, TIMEOUT_S
from edl.cluster.client.access import known_store, knows_clusters
from edl.cluster.client.client import drain_host
from edl.errors import UsageError

_WORKER = re.compile(r"w?\d+")


def drain(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[JOB] WORKER | HOST", help="For example: digits w3", show_default=False
        ),
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
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="NAME",
            help="HOST is one of this cluster. Default: a single word that is no worker (w3, 3) is "
            "a host of the cluster in EDL_CLUSTER, or of the only one whose secret is known here.",
            show_default=False,
        ),
    ] = None,
    timeout_s: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            help=f"How long to wait for it. Default: {ANSWER_S:g}, with --host {TIMEOUT_S:g}; for "
            "a host of a cluster none: it does not wait.",
            show_default=False,
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
        try:
            answer = job.drain(worker, ANSWER_S if timeout_s is None else timeout_s)
        except KeyboardInterrupt as end:
            message = "; ".join(["interrupted", *getattr(end, "__notes__", [])])
            print(f"edl: {message}", file=sys.stderr)
            raise typer.Exit(130) from None
    typer.echo(answer)


def _drain_host_of_cluster(
    words: list[str],
    option: str | None,
    cluster: str | None,
    zookeeper: str | None,
    timeout_s: float | None,
) -> None:
    """Take all jobs off a host of a cluster until `edl undrain`, and print that it is drained."""
    if len(words) + (option is not None) != 1:
        raise UsageError(
            "edl drain --cluster takes one host, as `edl drain --cluster lab node1`; for a worker "
            "of a job leave --cluster out"
        )
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
