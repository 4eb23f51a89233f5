"""The tenants of a cluster as an object for Python programs."""

from __future__ import annotations

from edl.client.cluster.connection import OpenStore


class TenantClient:
    """A client of the tenants of one cluster: `Cluster.tenants`."""

    def __init__(self, open_store: OpenStore) -> None:
        self._open = open_store

    def create(self, name: str) -> str:
        """Make a tenant, who may submit, see and steer own jobs only; return its secret."""
        with self._open() as store:
            return store.tenants.create(name)

    def list(self) -> tuple[str, ...]:
        """Return the names of the cluster's tenants, sorted."""
        with self._open() as store:
            store.nodes.check_administrator("see the tenants of the cluster")
            return store.tenants.names()

    def delete(self, name: str) -> int:
        """Remove a tenant without jobs and secrets; its secret opens nothing any more.

        Return how many nodes of its inbox stay, as the tenant has made others below them: then its
        name stays taken, and a repeated call tries again.
        """
        with self._open() as store:
            return store.tenants.delete(name)
