"""Put the parts of `edl host` together, from what it was told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from edl import config
from edl.coordination.cluster.format import own_version
from edl.coordination.cluster.store import ClusterStore
from edl.coordination.session import Session
from edl.core.cluster.records import HostOffer
from edl.core.cluster.slot_limits import NO_LIMITS, SlotLimits
from edl.errors import CoordinationError, UsageError
from edl.scheduler.host.agents import AgentOptions, HostAgents
from edl.scheduler.host.assigned_runs import AssignedRuns
from edl.scheduler.host.job_users import JobUsers
from edl.scheduler.host.keeper import HostKeeper
from edl.scheduler.host.log_places import LogPlaces
from edl.scheduler.host.log_server import LogServer
from edl.scheduler.host.owner import HostLock
from edl.scheduler.host.path_probe import PathProbe
from edl.scheduler.host.run_processes import host_mark
from edl.scheduler.host.secret_files import SecretFiles, secret_root
from edl.scheduler.host.slices import Slices


@dataclass(frozen=True)
class HostSettings:
    """The settings and options of one `edl host`."""

    settings: config.Config  # the settings of this process, with the name of the host
    address: str  # the network address of the host
    devices: tuple[int, ...]  # the numbers of the devices that it offers, one for each slot
    labels: Mapping[str, str]
    kind: str = ""  # the kind of machine, for policies that tell fast from slow ones; may be empty
    users: JobUsers = field(default_factory=JobUsers)  # the users as whom the jobs run
    limits: SlotLimits = NO_LIMITS  # the most that a job may use here, for each of its slots
    lease: str = ""  # the lease under which another engine lends the host; empty: under none


def keep_host(store: ClusterStore, own: HostSettings, say: Callable[[str], None]) -> None:
    """Keep a host of a cluster until a signal ends this process."""
    host, cluster, session = own.settings.host, store.paths.name, store.nodes.session
    access = session.access
    assert access is not None
    mark = host_mark(access.secret, cluster, host)
    lock = HostLock(mark)
    if not lock.take():
        raise UsageError(
            f"another `edl host` of host {host} of cluster {cluster} lives on this machine, though "
            "it may be frozen; end it, or give this one another name with --host"
        )
    within_s = own.settings.leave_within_s
    places = LogPlaces(
        config.state_dir() / "jobs",
        config.state_dir() / "clusters" / cluster / "agents" / host,
        own.users,
    )
    agents = HostAgents(
        AgentOptions(
            host,
            mark,
            len(own.devices),
            own.address,
            session.hosts,
            own.settings.network_interface,
            within_s,
        ),
        places,
        config.environment(),
        SecretFiles(secret_root(mark, config.state_dir())),
        own.users,
        None if own.limits.is_empty else Slices(own.limits, mark),
    )
    server = LogServer(own.address, cluster, access.secret, places, partial(_secret_of, store))
    offer = HostOffer(
        slots=len(own.devices),
        devices=own.devices,
        labels=own.labels,
        kind=own.kind,
        address=own.address,
        version=own_version(),
        lease=own.lease,
        tenants=tuple(sorted(own.users.of_tenants)),
    )

    def connect() -> Session:
        other = Session(session.hosts, session.session_timeout_s, session.request_timeout_s)
        other.start()
        return other

    runs = AssignedRuns(store, connect, PathProbe(), users=own.users)
    with server:
        served = replace(offer, port=server.port)
        HostKeeper(store, host, served, mark, agents, runs, say, within_s).run()


def _secret_of(store: ClusterStore, job: str) -> str | None:
    """Return the secret of a job's runs; None if there is none, or ZooKeeper is away."""
    try:
        return store.jobs.secret(job)
    except CoordinationError:
        return None
