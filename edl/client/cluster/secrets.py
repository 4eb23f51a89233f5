"""The secrets of a cluster as an object for Python programs."""

from __future__ import annotations

from edl.client.cluster.connection import OpenStore
from edl.coordination.cluster.secrets import SecretStatus
from edl.core.cluster.job_life import LifeState


class SecretClient:
    """A client of the secrets that one cluster keeps: :attr:`edl.client.Cluster.secrets`.

    Args:
        open_store: opens the records of the cluster.
    """

    def __init__(self, open_store: OpenStore) -> None:
        self._open = open_store

    def set(self, name: str, content: str | bytes) -> None:
        """Give a secret to the cluster, or replace it; jobs read it by its name.

        Args:
            name: the name of the secret.
            content: the secret.

        Raises:
            ConfigError: ``name`` cannot be the name of a secret.
            UsageError: the content is empty or has more than 64 KB, or the cluster has too many
                secrets.
        """
        with self._open() as store:
            data = content.encode() if isinstance(content, str) else bytes(content)
            store.secrets.set(name, data)

    def list(self) -> tuple[SecretStatus, ...]:
        """Return the names of the cluster's secrets, and who has set them when, sorted by name."""
        with self._open() as store:
            return store.secrets.list()

    def delete(self, name: str) -> tuple[str, ...]:
        """Remove a secret; return the names of the jobs that have not ended and ask for it.

        A job that asks for it and is to start waits until it is set again.

        Raises:
            UsageError: the cluster has no such secret.
        """
        with self._open() as store:
            store.secrets.delete(name)
            living = [job for job in store.jobs.list() if job.life.state is not LifeState.ENDED]
        return tuple(job.name for job in living if name in job.manifest.secrets)
