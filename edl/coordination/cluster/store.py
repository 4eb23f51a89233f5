"""Read a cluster as a whole, and reach its parts: jobs, hosts, queues, secrets, tenants.

Clients and controllers use it, by a :class:`ClusterStore`. What only the leading controller writes
is in ``writer``, what only `edl host` writes in ``host_registration``, and the submission of jobs
in ``submission``. Every method that reads or writes raises CoordinationError in bounded time when
ZooKeeper is away.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edl.coordination.cluster.events import ClusterEvents
from edl.coordination.cluster.hosts import ClusterHosts
from edl.coordination.cluster.job_reader import (
    FEW_PASSES,
    PASSES,
    PASSES_S,
    JobReader,
    StoredJob,
)
from edl.coordination.cluster.jobs import ClusterJobs
from edl.coordination.cluster.leader import ClusterLeader
from edl.coordination.cluster.nodes import ClusterNodes
from edl.coordination.cluster.queues import ClusterQueues
from edl.coordination.cluster.secrets import ClusterSecrets
from edl.coordination.cluster.settings import ClusterSettings
from edl.coordination.cluster.tenants import ClusterTenants
from edl.coordination.nodes import content, record
from edl.coordination.reads import OnChange, children, get
from edl.core.cluster.records import AllocationRecord, ClusterRecord, QueueRecord
from edl.core.cluster.view import HostView


@dataclass(frozen=True)
class ClusterSnapshot:
    """All that a plan needs of a cluster's nodes."""

    settings: ClusterRecord
    allocation: AllocationRecord  # the default before the first decision
    allocation_version: int  # which a write of it must name
    jobs: tuple[StoredJob, ...]  # in the order of submission
    hosts: tuple[HostView, ...]  # by name, each with the version of its `assigned`
    leader: Mapping[str, Any]  # of the newest term, with its `term`; empty before the first
    secrets: frozenset[str] = frozenset()  # the names
    queues: Mapping[str, QueueRecord] = field(default_factory=dict)  # by name
    tenants: frozenset[str] = frozenset()  # the names


class ClusterStore:
    """The nodes of one cluster in ZooKeeper, read and written as records."""

    # `on_change` runs on kazoo's connection thread, so it must not block.

    def __init__(self, nodes: ClusterNodes, by: str = "", on_change: OnChange = None) -> None:
        self.nodes = nodes
        self.paths = nodes.paths
        self._on_change = on_change
        self._changes = 0
        self._reader = JobReader(nodes, self._changed)
        self.events = ClusterEvents(nodes, by)
        self.jobs = ClusterJobs(nodes, self.events, self._reader)
        self.hosts = ClusterHosts(nodes, self.events)
        self.queues = ClusterQueues(nodes, self.events, self.jobs)
        self.secrets = ClusterSecrets(nodes, self.events)  # of users
        self.tenants = ClusterTenants(nodes, self.events, self.jobs, self.queues, self.secrets)
        self.settings = ClusterSettings(nodes, self.events)
        self.leader = ClusterLeader(nodes)

    def snapshot(self) -> ClusterSnapshot:
        """Read what has changed since the last call, all as of one time; one thread at a time."""
        began_s = time.monotonic()
        for number in range(PASSES):
            before = self._changes
            found = self._pass()
            if self._changes == before:  # no watch has fired, so all of it is still so
                break
            # Others write without a pause. What only the leader writes is of one time even so.
            if number >= FEW_PASSES and time.monotonic() - began_s >= PASSES_S:
                break
        return found

    def look(self) -> ClusterSnapshot:
        """Read the cluster once, without watches, as a client does that looks at it."""
        return self._pass(watch=False)

    def _changed(self) -> None:
        """Count a change of a node that was read; on kazoo's connection thread."""
        self._changes += 1
        if self._on_change is not None:
            self._on_change()

    def _pass(self, watch: bool = True) -> ClusterSnapshot:
        """Read each node once; with `watch`, unchanged ones come from the session's cache."""
        self.nodes.check_administrator("see the cluster as a whole")
        p, wake = self.paths, self._changed if watch else None
        single = (p.cluster, p.allocation, p.leader)
        *values, jobs, hosts, secrets, queues = self.nodes.read(
            *(get(path, wake) for path in single),
            *(children(path, wake) for path in (p.jobs, p.hosts, p.secrets, p.queues)),
        )
        if None in (*values, jobs, hosts):
            raise self.nodes.unknown()
        cluster, allocation, leader = values
        return ClusterSnapshot(
            settings=record(ClusterRecord, (p.cluster, cluster[0])),
            allocation=record(AllocationRecord, (p.allocation, allocation[0])),
            allocation_version=allocation[1].version,
            jobs=self._reader.watched(jobs) if watch else self._reader.read(jobs),
            hosts=self.hosts.read(hosts, wake),
            leader=content(p.leader, leader),
            secrets=frozenset(secrets or ()),
            queues=self.queues.read(queues or (), wake),
            tenants=frozenset(self.tenants.records(wake)),
        )
