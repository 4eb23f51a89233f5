"""`edl dashboard` and `edl history`: what happens in a browser, and what has happened."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import typer

from edl.api.listening import ListenAddress, check_packages
from edl.cli.common import ClusterOption, JsonOption, ZooKeeperOption, line_writer, moment
from edl.client.connection import choose_job, connected
from edl.cluster.client.access import NO_CLUSTER, known_store, store_of_job
from edl.cluster.client.connection import connected_cluster
from edl.cluster.client.history_file import MAX_ROWS, HistoryFile, history_path
from edl.cluster.history import JobHistory, SlotInterval
from edl.config import LOOPBACK
from edl.text import aligned, counted, rounded

PORT = 8470
PACKAGES = ("starlette", "uvicorn", "httptools")


def dashboard(
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="[JOB]",
            help="Name of the job. Without it: the cluster that is known here, with its jobs; "
            "without one, the job that runs.",
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
    from edl.dashboard.server import (  # takes half a second
        access_of_job,
        run_cluster_dashboard,
        run_dashboard,
    )

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
        secret = None
        if job is not None:
            store = store_of_job(session, job, cluster)
            if store is not None and store.jobs.has(job):
                secret = access_of_job(store, job).secret
        run_dashboard(choose_job(session, job, ended=True, secret=secret), listen, say, actions)


HOUR_S = 3600.0
SHOWN = 20  # jobs, without a name


def history(
    job: Annotated[
        str | None,
        typer.Argument(metavar="[JOB]", help="Only jobs of this name, with their slots."),
    ] = None,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Show jobs of a cluster, also those whose records are gone, the newest submission first.

    The history is kept in a file on this machine, which is made from the cluster's events: a
    controller's machine has all of it, another one what the newest 10,000 events say.
    """
    with connected_cluster(cluster, zookeeper) as store:
        store.nodes.check_administrator("see the history of the cluster")
        name = store.paths.name
        file = HistoryFile(history_path(name))
        file.fill(lambda after: store.events.read(after), store.nodes.uid())
    now_s = time.time()
    jobs = file.jobs(now_s, job, most=SHOWN if job is None and not as_json else MAX_ROWS)
    slots = () if job is None else file.slots(0.0, now_s, job)
    if as_json:
        for one in jobs:
            mine = [each.to_json() for each in slots if each.submission == one.submission]
            values = one.to_json()
            typer.echo(json.dumps(values if job is None else {**values, "slots": mine}))
        return
    if not jobs:
        such = f" job {job}" if job else " jobs"
        typer.echo(f"the history of cluster {name} on this machine has no{such}")
        return
    for line in history_table(jobs, now_s):
        typer.echo(line)
    for line in slot_lines(slots, now_s):
        typer.echo(line)


def history_table(jobs: Sequence[JobHistory], now_s: float) -> list[str]:
    rows = [("JOB", "STATE", "RUNS", "SLOT HOURS", "SUBMITTED", "LASTED", "BY")]
    for one in jobs:
        state = str(one.result or one.state)
        end_s = one.ended_s or now_s
        lasted = rounded(end_s - one.submitted_s) if one.submitted_s else "-"
        slot_h = f"{one.slot_s / HOUR_S:.2f}"
        begun = moment(one.submitted_s) if one.submitted_s else "-"
        rows.append((one.job, state, str(one.runs), slot_h, begun, lasted, one.by or "-"))
    return aligned(rows)


def slot_lines(slots: Sequence[SlotInterval], now_s: float) -> list[str]:
    """Return a line for each time during which a job had the same number of slots on a host."""
    lines = []
    for one in slots:
        lasted = rounded((now_s if one.end_s is None else one.end_s) - one.begin_s)
        until = "now" if one.end_s is None else moment(one.end_s)
        number = counted(one.slots, "slot")
        lines.append(f"  {moment(one.begin_s)} to {until} ({lasted}): {number} of {one.host}")
    return lines
