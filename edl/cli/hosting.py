"""What `edl run` and `edl join` share: this host's agent, and its workers' environment."""

from __future__ import annotations

import os
from pathlib import Path

from edl import config
from edl.cli.common import console
from edl.cli.live import LiveLine
from edl.config import Config
from edl.coordination.job_store import JobStore
from edl.coordination.secrets import keep
from edl.core.host.agent import AgentLimits
from edl.core.plural import counted
from edl.core.records import Host, Job
from edl.core.retention import Retention
from edl.errors import UsageError
from edl.launch.address import own_address
from edl.launch.agent import Agent
from edl.launch.command import check_command
from edl.launch.job_garbage_collector import JobGarbageCollector
from edl.launch.output import Output
from edl.launch.workers import log_directory


def this_host(settings: Config, slots: int, zookeeper: str) -> Host:
    """This host, as a job shall know it."""
    address = own_address(settings.address, settings.network_interface, zookeeper)
    return Host(settings.host, slots, address, os.getpid())


def joining_agent(
    store: JobStore, settings: Config, slots: int | None, np: int | None, ends_last: bool = False
) -> Agent:
    """The agent of a host that adds itself to a job which runs; the session is that job's.

    Args:
        slots: workers that fit here; None: the job's maximum.
        np: workers to start here at once; None: none, until somebody asks for more.
        ends_last: a signal to the last host ends the job.

    Raises:
        UsageError: nothing can join this job, or not so.
    """
    record = store.snapshot().job
    if record.state.over:
        raise UsageError(f"job {record.name} {record.state.phrase}; nothing can join it")
    if record.driver:
        raise UsageError(
            f"job {record.name} was started by horovodrun, which places its workers; let its "
            "host discovery script name this host"
        )
    if slots is None:
        slots = record.sizes.max_np or record.spec.np
    if slots < 1:
        raise UsageError(f"--slots is {slots}; a host needs at least 1")
    if np is not None and not 1 <= np <= slots:
        raise UsageError(f"-np is {np} and --slots is {slots}; -np must lie between 1 and --slots")
    check_command(record.spec.command, Path(record.spec.cwd), config.environment().get("PATH"))
    session = store.session
    assert session.access is not None
    secret = session.access.secret
    here = this_host(settings, slots, session.hosts)
    greeting = f"host {here.name} offers {counted(slots, 'slot')} to job {record.name}"
    if np is None:
        greeting += f"; use them with `edl scale {record.name} --np N`"
    return host_agent(
        store, settings, record, here, secret, greeting, np=np or 0, guest=True, ends_last=ends_last
    )


def host_agent(
    store: JobStore,
    settings: Config,
    job: Job,
    here: Host,
    secret: str,
    greeting: str,
    np: int = 0,
    guest: bool = False,
    ends_last: bool = False,
    fresh: bool = False,
) -> Agent:
    """This host's agent, which writes to this terminal; see :class:`Agent`.

    ``fresh``: the job starts now.
    """
    state = config.state_dir()
    keep(state, job.name, secret)
    line = LiveLine(job.name)
    return Agent(
        store,
        here,
        job,
        Output(console(), line.render),
        worker_environment(job, store.session.hosts, here, secret, settings.network_interface),
        log_directory(state, job.name, fresh),
        greeting,
        AgentLimits(
            start_timeout_s=job.spec.settings.start_timeout_s,
            backoff_max_s=settings.backoff_max_s,
            frozen_s=settings.frozen_s,
        ),
        np=np,
        joined=guest,
        ends_job=ends_last,
        on_snapshot=line.update,
        stack_signal=settings.stack_signal,
        meanwhile=JobGarbageCollector(
            store, state, Retention(settings.keep_jobs, settings.keep_jobs_s)
        ),
        borrowed_file=Path(settings.borrowed_file).absolute() if settings.borrowed_file else None,
        reclaim_s=settings.reclaim_s,
        leave_within_s=settings.leave_within_s,
    )


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
        "PYTHONUNBUFFERED": "1",
    }
