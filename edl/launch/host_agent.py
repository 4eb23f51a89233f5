"""Build the agent of this host for one job, from the settings and the job's record.

:func:`submitter_agent` is for the host that created the job, :func:`joining_agent` for a host that
adds itself to a job that runs. Both return an :class:`Agent` that was not started.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edl import config
from edl.config import Config
from edl.coordination.job_store import JobStore
from edl.coordination.secrets import keep
from edl.core.host.agent import AgentLimits
from edl.core.plural import counted, workers
from edl.core.records import Host, Job, Snapshot
from edl.core.retention import Retention
from edl.core.settings import variable
from edl.errors import UsageError
from edl.launch.address import own_address
from edl.launch.agent import Agent
from edl.launch.command import check_command
from edl.launch.job_garbage_collector import JobGarbageCollector
from edl.launch.output import Output
from edl.launch.workers import EVENTS, log_directory

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Display:
    """Where an agent shows its job.

    Attributes:
        output: of the workers' lines and the agent's own.
        on_snapshot: called with each new reading of the job's records; None: nothing is.
    """

    output: Output
    on_snapshot: Callable[[Snapshot], None] | None = None


@dataclass(frozen=True)
class Role:
    """How a host takes part in a job.

    Attributes:
        greeting: what the agent says once the host is registered.
        requested_np: workers that the agent asks for once the host is registered.
        joined: the first signal makes the host leave the job instead of ending the job.
        ends_job: but on the last host it ends the job.
        fresh: the job starts now, so logs of an earlier job of its name are put aside.
    """

    greeting: str
    requested_np: int = 0
    joined: bool = False
    ends_job: bool = False
    fresh: bool = False


def this_host(settings: Config, slots: int, zookeeper: str) -> Host:
    """Return this host, as a job's record shall have it.

    Args:
        settings: name, address and network interface of the host.
        slots: workers that fit on it.
        zookeeper: servers; without a given address, the one that leads to them is taken.

    Raises:
        UsageError: the address or the interface is not this host's.
    """
    address = own_address(settings.address, settings.network_interface, zookeeper)
    return Host(settings.host, slots, address, os.getpid())


def submitter_agent(
    store: JobStore,
    job: Job,
    here: Host,
    settings: Config,
    display: Display,
    or_join: bool = False,
    replaced_events: str = "",
) -> Agent:
    """Build the agent of the host that has just created a job.

    Args:
        store: the job; its session created it.
        job: its record.
        here: this host.
        settings: of this process.
        display: where the agent shows the job.
        or_join: all hosts run `edl run --or-join`, so a signal makes this host leave, and ends the
            job on the last host.
        replaced_events: of an earlier job of that name; they are written beside its logs.
    """
    _keep_events(replaced_events, config.state_dir(), job.name)
    greeting = f"job {job.name} starts with {workers(job.spec.np)}"
    role = Role(
        f"{greeting}; ZooKeeper is at {store.session.hosts}",
        requested_np=job.spec.np if or_join else 0,
        joined=or_join,
        ends_job=or_join,
        fresh=True,
    )
    return _agent(store, job, here, settings, display, role)


def joining_agent(
    store: JobStore,
    settings: Config,
    display: Display,
    slots: int | None,
    np: int | None,
    ends_job: bool = False,
) -> Agent:
    """Build the agent of a host that adds itself to a job that runs.

    Args:
        store: the job; its session has proved the job's secret.
        settings: of this process.
        display: where the agent shows the job.
        slots: workers that fit here; None: the job's maximum.
        np: workers to start here at once; None: none, until somebody asks for more.
        ends_job: a signal to the last host ends the job.

    Raises:
        UsageError: the job is over or was started by horovodrun, ``slots`` or ``np`` is out of
            range, or the job's command cannot run here.
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
    here = this_host(settings, slots, store.session.hosts)
    greeting = f"host {here.name} offers {counted(slots, 'slot')} to job {record.name}"
    if np is None:
        greeting += f"; use them with `edl scale {record.name} --np N`"
    role = Role(greeting, requested_np=np or 0, joined=True, ends_job=ends_job)
    return _agent(store, record, here, settings, display, role)


def worker_environment(
    job: Job, hosts: str, here: Host, secret: str, interface: str
) -> dict[str, str]:
    """Return the environment of a worker on this host: the user's, and which job it belongs to.

    Args:
        job: the worker's.
        hosts: the ZooKeeper servers.
        here: this host.
        secret: of the job.
        interface: the network interface that was asked for, which NCCL has to be told; empty: none.
    """
    return {
        **({"NCCL_SOCKET_IFNAME": interface} if interface else {}),
        **config.environment_for_worker(),
        "EDL_JOB": job.name,
        "EDL_SECRET": secret,
        "EDL_ZOOKEEPER": hosts,
        "EDL_HOST": here.name,
        "EDL_ADDRESS": here.address,
        # Asked of ZooKeeper before the worker can read it in the job's record.
        variable("session_timeout_s"): f"{job.spec.settings.session_timeout_s:g}",
        "PYTHONUNBUFFERED": "1",
    }


def _agent(
    store: JobStore, job: Job, here: Host, settings: Config, display: Display, role: Role
) -> Agent:
    """Build an agent; write down the job's secret and create the directory of its logs."""
    session = store.session
    assert session.access is not None
    secret = session.access.secret
    state = config.state_dir()
    keep(state, job.name, secret)
    return Agent(
        store,
        here,
        job,
        display.output,
        worker_environment(job, session.hosts, here, secret, settings.network_interface),
        log_directory(state, job.name, role.fresh),
        role.greeting,
        AgentLimits(
            start_timeout_s=job.spec.settings.start_timeout_s,
            backoff_max_s=settings.backoff_max_s,
            frozen_s=settings.frozen_s,
        ),
        np=role.requested_np,
        joined=role.joined,
        ends_job=role.ends_job,
        on_snapshot=display.on_snapshot,
        stack_signal=settings.stack_signal,
        meanwhile=JobGarbageCollector(
            store, state, Retention(settings.keep_jobs, settings.keep_jobs_s)
        ),
        borrowed_file=Path(settings.borrowed_file).absolute() if settings.borrowed_file else None,
        reclaim_s=settings.reclaim_s,
        leave_within_s=settings.leave_within_s,
    )


def _keep_events(events: str, state: Path, job: str) -> None:
    """Write the events of an earlier job beside its logs, which are put aside next."""
    if not events:
        return
    try:
        (log_directory(state, job, fresh=False) / EVENTS).write_text(events)
    except OSError as error:
        logger.warning("the events of the last run of job %s are lost: %s", job, error)
