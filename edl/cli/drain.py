"""`edl drain`: take one worker, or one host, out of a job."""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated

import typer

from edl.cli.common import ZooKeeperOption, choose_job, connected, worker_number
from edl.coordination.store import JobStore
from edl.core.facts import JobState, Request, Snapshot
from edl.core.placement import drain_host
from edl.errors import EdlError, UsageError

LOOK_S = 0.1


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
    timeout_s: Annotated[float, typer.Option("--timeout", help="Seconds to wait for it.")] = 60.0,
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
    worker = worker_number(named.pop()) if host is None else -1
    who = f"w{worker}" if host is None else f"host {host}"
    with connected(zookeeper) as session:
        store = choose_job(session, named[0] if named else None)
        job = store.snapshot().job
        if job.state is not JobState.RUNNING:
            raise UsageError(f"cannot drain {who}: job {job.name} is {job.state}")
        if host is None:
            typer.echo(_drain_worker(store, worker, timeout_s))
        else:
            typer.echo(_drain_host(store, host, timeout_s))


def _drain_worker(store: JobStore, worker: int, timeout_s: float) -> str:
    """What the leader says, once the worker leaves with a switch.

    Raises:
        UsageError: the leader refuses.
        EdlError: it does not answer in time, or the job has ended.
    """
    number = store.add_request(Request("drain", worker))
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        request = store.get_request(number)
        if request.done:
            break
        if store.snapshot().job.state.over:
            raise EdlError(f"w{worker} was not drained: job {store.name} has ended")
        time.sleep(LOOK_S)
    else:
        store.remove_request(number)
        raise EdlError(
            f"no leader of job {store.name} answered within {timeout_s:g} s; the request to "
            f"drain w{worker} is taken back (see `edl status {store.name}`)"
        )
    if not request.accepted:
        raise UsageError(request.outcome)
    return request.outcome


def _drain_host(store: JobStore, name: str, timeout_s: float) -> str:
    """That the host has left: its agent ends when its workers have; without one, they leave.

    Raises:
        UsageError: there is no such host, or too few workers would be left.
        EdlError: it did not leave in time, or the job has ended.
    """
    _check_host(store.snapshot(), name)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        snapshot = store.snapshot()
        job = snapshot.job
        if job.state.over:
            raise EdlError(f"host {name} was not drained: job {job.name} has ended")
        agent = next((host for host in snapshot.hosts if host.name == name), None)
        if snapshot.plan.get(name):
            drain_host(job, name, snapshot.plan)  # or says why it cannot leave
        if agent is not None and agent.slots and not agent.leaving:
            store.ask_host_to_leave(name)
        elif agent is None and snapshot.plan.get(name):
            store.change_plan(partial(drain_host, job, name))
        elif agent is None and not any(member.host == name for member in snapshot.members):
            return f"host {name} has left job {job.name}"
        time.sleep(LOOK_S)
    raise EdlError(
        f"host {name} has not left job {store.name} within {timeout_s:g} s; it was asked to, so "
        f"it may still do that (see `edl status {store.name}`)"
    )


def _check_host(snapshot: Snapshot, name: str) -> None:
    job = snapshot.job
    if job.driver:
        raise UsageError(
            f"cannot drain host {name}: job {job.name} was started by horovodrun, which places "
            "its workers; take the host out of what its host discovery script prints"
        )
    known = {host.name for host in snapshot.hosts} | {*snapshot.plan}
    if name not in known:
        hosts = ", ".join(sorted(known))
        raise UsageError(f"host {name} is not in job {job.name}; its hosts are {hosts}")
