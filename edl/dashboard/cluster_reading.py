"""Read a cluster for its page, as far as the one who looks may read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edl.cluster.client.plans import status_of_snapshot
from edl.cluster.client.waiting import described
from edl.cluster.records import LeaseTable
from edl.cluster.status import ClusterStatus
from edl.cluster.store import ClusterSnapshot, ClusterStore, StoredJob
from edl.cluster.submission import TenantStore
from edl.core.dashboard.cluster_page import ClusterJobSummary, ClusterObservation
from edl.errors import UnknownJob


@dataclass(frozen=True)
class _LastStatus:
    """The status of a cluster, with what it was computed from."""

    about: tuple[Any, ...]  # what was read; the status is computed again when any of it has changed
    status: ClusterStatus


class ClusterReader:
    """A reader of a cluster's records, which reads again only what changed; one thread calls it."""

    def __init__(self, store: ClusterStore) -> None:
        self.store = store
        self._known: _LastStatus | None = None
        self._leaderless_s = 0.0
        self._jobs: Mapping[str, StoredJob] = {}

    @property
    def is_tenant(self) -> bool:
        """Whether a tenant looks, who sees its own jobs only."""
        return isinstance(self.store, TenantStore)

    def read(self, now_s: float) -> ClusterObservation:
        """Return what the one who looks may see of the cluster at `now_s`."""
        store, name = self.store, self.store.paths.name
        said = store.leader.reasons()
        hosts = store.nodes.session.hosts
        if isinstance(store, TenantStore):
            jobs = store.jobs.list()
            self._jobs = {job.name: job for job in jobs}
            shown = tuple(described(job, said) for job in jobs)
            return ClusterObservation(
                name, shown, hosts, now_s, said.at_s, viewer=store.nodes.tenant
            )
        snapshot = store.snapshot()
        self._jobs = {job.name: job for job in snapshot.jobs}
        (leases, _), controllers = store.leader.leases(), len(store.leader.controllers())
        self._leaderless_s = 0.0 if controllers else self._leaderless_s or now_s
        queues = snapshot.queues.items()
        return ClusterObservation(
            cluster=name,
            jobs=tuple(described(job, said) for job in snapshot.jobs),
            zookeeper=hosts,
            at_s=now_s,
            reasons_s=said.at_s,
            status=self._status(snapshot, leases, controllers),
            leaderless_s=self._leaderless_s,
            leases=leases,
            tenants=store.tenants.names(),
            queue_tenants={queue: one.tenant for queue, one in queues if one.tenant},
        )

    def facts(self, job: str, now_s: float) -> ClusterJobSummary:
        """Return what a page shows of `job` when somebody opens its row."""
        found = self._jobs.get(job)
        if found is None:
            raise UnknownJob(job, tuple(sorted(self._jobs)), "edl submit")
        known = self._known
        hosts = () if known is None else known.status.hosts
        manifest = found.manifest
        return ClusterJobSummary(
            job=job,
            command=manifest.command,
            cwd=manifest.cwd,
            labels=manifest.labels,
            after=manifest.after,
            checkpoint=manifest.checkpoint,
            hosts={host.host: host.jobs[job] for host in hosts if job in host.jobs},
            slot_s=found.life.attained_s(now_s),
            not_before_s=found.life.not_before_s,
            run=found.life.run,
        )

    def _status(
        self, snapshot: ClusterSnapshot, leases: LeaseTable, controllers: int
    ) -> ClusterStatus:
        """Return the status of the cluster, as `edl cluster status` shows it."""
        about = (snapshot, leases, controllers)
        if self._known is None or self._known.about != about:
            self._known = _LastStatus(about, status_of_snapshot(self.store, *about))
        return self._known.status
