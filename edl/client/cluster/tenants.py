"""The tenants of a cluster as an object for Python programs."""

from __future__ import annotations

from edl.client.cluster.connection import OpenStore


class TenantClient:
    """A client of the tenants of one cluster: :attr:`edl.client.Cluster.tenants`.

    Args:
        open_store: opens the records of the cluster.
    """

    def __init__(self, open_store: OpenStore) -> None:
        self._open = open_store

    def create(self, name: str) -> str:
        """Make a tenant, who may submit, see and steer own jobs only; return its secret.

        The secret is one word, which no other call tells again. Commands and programs of the tenant
        take it as they take that of a cluster.

        Raises:
            UsageError: the name is not allowed, or the cluster has such a tenant.
        """
        with self._open() as store:
            return store.tenants.create(name)

    def list(self) -> tuple[str, ...]:
        """Return the names of the cluster's tenants, sorted."""
        with self._open() as store:
            store.nodes.check_administrator("see the tenants of the cluster")
            return store.tenants.names()

    def delete(self, name: str) -> int:
        """Remove a tenant without jobs and secrets; its own secret opens nothing any more.

        Returns:
            How many nodes of its inbox could not be removed, because the tenant has made others
            below them. Then its name stays taken; a repeated call tries again.

        Raises:
            UsageError: there is no such tenant, or it has jobs, ended ones included, secrets, or
                queues.
        """
        with self._open() as store:
            return store.tenants.delete(name)
