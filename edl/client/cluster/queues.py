"""The queues of a cluster as an object for Python programs."""

from __future__ import annotations

from dataclasses import replace

from edl.client.cluster.connection import OpenStore
from edl.coordination.cluster.runs import cluster_view
from edl.core.cluster.queue_shares import overbooked
from edl.core.cluster.queue_status import QueueStatus, queue_statuses
from edl.core.cluster.records import QueueRecord
from edl.core.job.placement import whole
from edl.errors import UsageError


class QueueClient:
    """A client of the queues of one cluster: :attr:`edl.client.Cluster.queues`.

    Args:
        open_store: opens the records of the cluster.
    """

    def __init__(self, open_store: OpenStore) -> None:
        self._open = open_store

    def set(
        self,
        name: str,
        quota: int | None = None,
        weight: float | None = None,
        most: int | None = None,
        tenant: str | None = None,
    ) -> QueueRecord:
        """Create a queue, or change it; return it. What is not given stays as it is.

        From the first queue on, each job must name one by ``queue`` in its manifest.

        Args:
            name: the name of the queue.
            quota: its guaranteed slots; a new queue has 0.
            weight: its share, against that of other queues, of the slots that no quota needs; a new
                queue has 1.
            most: the most slots that its jobs may have together; 0 for no limit.
            tenant: the tenant whose jobs may use it; empty for no tenant.

        Raises:
            ConfigError: ``name`` cannot be the name of a queue.
            UsageError: a value is not allowed, or the cluster has too many queues.
        """

        def change(before: QueueRecord) -> QueueRecord:
            return replace(
                before,
                quota=before.quota if quota is None else whole(quota),
                weight=before.weight if weight is None else float(weight),
                most=before.most if most is None else whole(most) or None,
                tenant=before.tenant if tenant is None else tenant,
            )

        with self._open() as store:
            if tenant and tenant not in store.tenants.names():
                raise UsageError(
                    f"cluster {store.paths.name} has no tenant {tenant!r}; make it with "
                    f"`edl tenant create {tenant}`"
                )
            return store.queues.change(name, change)

    def list(self) -> tuple[QueueStatus, ...]:
        """Return the queues of the cluster by name, with their slots and jobs; empty: none."""
        with self._open() as store:
            store.nodes.check_administrator("see the queues of the cluster")
            return queue_statuses(cluster_view(store.look(), {}))

    def delete(self, name: str) -> None:
        """Remove the queue ``name``. Without any queue, all jobs share the slots of the cluster.

        Raises:
            UsageError: the cluster has no such queue, or it has jobs that have not ended.
        """
        with self._open() as store:
            store.queues.delete(name)

    def overbooked(self) -> str:
        """Return the sentence that the quotas of all queues exceed the cluster; empty: they fit."""
        with self._open() as store:
            offers = [host.offer for host in store.hosts.list() if host.offer is not None]
            return overbooked(store.queues.records(), sum(len(one.numbers) for one in offers))
