"""`edl dashboard`: show a job, or a cluster, in a browser."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from edl.api.listening import ListenAddress, check_packages
from edl.cli.common import ZooKeeperOption, line_writer
from edl.client.connection import choose_job, connected
from edl.cluster.client.access import NO_CLUSTER, known_store, store_of_job
from edl.cluster.client.connection import connected_cluster
from edl.config import LOOPBACK
from edl.zookeeper.session import Session

PORT = 8470
PACKAGES = ("starlette", "uvicorn")


def dashboard(
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="[JOB]",
            help="Name of the job. Without it: the cluster that is known here, with its jobs; "
            "without one, the job that runs.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Where to listen; 0: any free port.")
    ] = PORT,
    address: Annotated[
        str, typer.Option("--address", help="Of this host, to listen on, if not for itself alone.")
    ] = LOOPBACK,
    actions: Annotated[
        bool,
        typer.Option(
            "--actions",
            help="Also print an address whose page offers to scale, drain, migrate, halt, ...",
        ),
    ] = False,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="NAME",
            help="Show this cluster, or JOB of it. Default: EDL_CLUSTER, else the only one whose "
            "secret is known here. '': a job of `edl run`.",
            show_default=False,
        ),
    ] = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Show a job in a browser, or a cluster with all its jobs.

    Of a job: its state, generations, workers, speed, events and sizes. Of a cluster: who had which
    slots when, the queue with why each job waits, queues, hosts, and what a request would get.

    The printed address has a token, without which the page shows nothing. The server reads once a
    second, and goes on after a job's end, until Ctrl-C. It changes nothing, unless --actions has
    printed a second address, with a token for that. Without JOB and without a cluster, if no job
    runs, the only one that has ended is shown.
    """
    check_packages("the dashboard", PACKAGES, "dashboard")
    from edl.dashboard.server import run_cluster_dashboard, run_dashboard  # takes half a second

    listen = ListenAddress(address, port)
    write = line_writer()

    def say(text: str) -> None:
        write(f"edl: {text}")

    if job is None and cluster != NO_CLUSTER:
        with connected(zookeeper) as session:
            store = known_store(session, cluster)
            name = None if store is None else store.paths.name
        if name is not None:
            run_cluster_dashboard(partial(connected_cluster, name, zookeeper), listen, say, actions)
            return
    with connected(zookeeper) as session:
        secret = None if job is None else _secret_in_cluster(session, job, cluster)
        run_dashboard(choose_job(session, job, ended=True, secret=secret), listen, say, actions)


def _secret_in_cluster(session: Session, job: str, cluster: str | None) -> str | None:
    store = store_of_job(session, job, cluster)
    if store is None or not store.jobs.has(job):
        return None
    from edl.dashboard.server import access_of_job

    return access_of_job(store, job).secret
