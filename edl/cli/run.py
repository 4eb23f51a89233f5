"""`edl run`: start a job, with this host's agent in this process."""

from __future__ import annotations

import os
import re
import time
import uuid
from pathlib import Path
from typing import Annotated

import typer

from edl import config
from edl.cli.common import (
    AddressOption,
    HostOption,
    InterfaceOption,
    ZooKeeperOption,
    check_own_name,
    console,
    open_session,
)
from edl.cli.live import LiveLine
from edl.coordination.access import Access
from edl.coordination.local_server import find_local, start_local
from edl.coordination.paths import check_name
from edl.coordination.store import JobStore
from edl.core.facts import Host, Job
from edl.core.placement import check_limits
from edl.errors import UsageError
from edl.launch.address import own_address
from edl.launch.agent import Agent
from edl.launch.command import check_command, title
from edl.launch.output import Output
from edl.launch.secret import announce, candidates, keep, new_secret
from edl.launch.workers import log_directory


def run(
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND…", help="For example: python train.py --lr 0.1")
    ],
    np: Annotated[int, typer.Option("-np", "--np", help="Workers to start with.")] = 1,
    min_np: Annotated[int, typer.Option("--min-np", help="Never fewer workers.")] = 1,
    max_np: Annotated[
        int | None,
        typer.Option(
            "--max-np",
            help="Never more workers. Default: the greater of -np and --slots.",
            show_default=False,
        ),
    ] = None,
    job: Annotated[
        str | None,
        typer.Option("--job", help="Name of the job. Default: made up.", show_default=False),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(
            "--slots", help="Workers that fit on this host. Default: --max-np.", show_default=False
        ),
    ] = None,
    host: HostOption = None,
    address: AddressOption = None,
    network_interface: InterfaceOption = None,
    chaos: Annotated[
        bool,
        typer.Option("--chaos", help="Let `edl chaos` expire sessions and cut connections."),
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the script's newest checkpoint.")
    ] = False,
    resume_from: Annotated[
        Path | None,
        typer.Option(
            "--resume-from",
            metavar="DIR",
            help="The same, from another directory than the script's.",
            show_default=False,
        ),
    ] = None,
    elastic_timeout_s: Annotated[
        float | None,
        typer.Option(
            "--elastic-timeout",
            metavar="SECONDS",
            help="How long fewer than --min-np workers wait for others. Default: 600.",
            show_default=False,
        ),
    ] = None,
    stall_limit_s: Annotated[
        float | None,
        typer.Option(
            "--stall-limit",
            metavar="SECONDS",
            help="Give up a worker that holds the others up this long. Default: never.",
            show_default=False,
        ),
    ] = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Train COMMAND with -np workers; others may join and leave while it runs.

    Ends with the job's result. Ctrl-C ends the job after the step that runs.
    """
    settings = config.load(
        host=host,
        address=address,
        network_interface=network_interface,
        zookeeper=zookeeper,
        elastic_timeout_s=elastic_timeout_s,
        stall_limit_s=stall_limit_s,
        resume=str(resume_from.absolute()) if resume_from else ("1" if resume else None),
    )
    if resume_from is not None and not resume_from.is_dir():
        raise UsageError(f"cannot resume: there is no directory {resume_from}")
    max_np = max(np, slots or 0) if max_np is None else max_np
    slots = max_np if slots is None else slots
    check_limits(np, min_np, max_np)
    if slots < np:
        raise UsageError(
            f"-np is {np} and this host has {slots} slots; raise --slots, or start with "
            f"-np {max(slots, 1)} and scale after `edl join` on another host"
        )
    cwd = Path.cwd()
    check_command(command, cwd, config.environment().get("PATH"))
    check_own_name()
    name = check_name("job", job) if job is not None else _made_up(title(command))
    check_name("host", settings.host)

    hosts = settings.zookeeper or find_local() or start_local()
    job_record = Job(
        name=name,
        command=tuple(command),
        np=np,
        min_np=min_np,
        max_np=max_np,
        created=time.time(),
        cwd=str(cwd),
        resume=settings.resume,
        elastic_timeout_s=settings.elastic_timeout_s,
        stall_limit_s=settings.stall_limit_s or 0.0,
        chaos=chaos or settings.chaos,
    )
    reachable = own_address(settings.address, settings.network_interface, hosts)
    here = Host(settings.host, slots, reachable, os.getpid())
    line = LiveLine(name)
    state, secret = config.state_dir(), settings.secret or new_secret()
    earlier = [Access(name, one) for one in candidates(state, name, None)]
    announce(state, name, secret)
    with open_session(hosts, settings) as session:
        session.identify(*earlier, Access(name, secret))  # an earlier job is replaced
        store = JobStore(session, name)
        store.create(job_record, {here.name: np})
        keep(state, name, secret)
        agent = Agent(
            store,
            here,
            job_record,
            Output(console(), line.render),
            worker_environment(job_record, hosts, here, secret, settings.network_interface),
            log_directory(state, name, fresh=True),
            settings.start_timeout_s,
            f"job {name} starts with {np} workers; ZooKeeper is at {hosts}",
            on_snapshot=line.update,
            backoff_max_s=settings.backoff_max_s,
        )
        code = agent.run()
    raise typer.Exit(code)


def worker_environment(
    job: Job, hosts: str, here: Host, secret: str, interface: str
) -> dict[str, str]:
    """The environment of a worker on this host: the user's, and which job it belongs to.

    ``interface``: that was asked for, which NCCL has to be told; empty: none.
    """
    return {
        **({"NCCL_SOCKET_IFNAME": interface} if interface else {}),
        **config.environment_for_worker(),
        "EDL_JOB": job.name,
        "EDL_SECRET": secret,
        "EDL_ZOOKEEPER": hosts,
        "EDL_HOST": here.name,
        "EDL_ADDRESS": here.address,
        "EDL_RESUME": job.resume,
        "EDL_ELASTIC_TIMEOUT_S": repr(job.elastic_timeout_s),
        "EDL_STALL_LIMIT_S": repr(job.stall_limit_s) if job.stall_limit_s else "",
        "EDL_CHAOS": "1" if job.chaos else "0",
        "PYTHONUNBUFFERED": "1",
    }


def _made_up(script: str) -> str:
    stem = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(script).stem).strip("-_")[:40] or "job"
    return f"{stem}-{uuid.uuid4().hex[:4]}"
