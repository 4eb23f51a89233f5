"""The hosts of a cluster as an object for Python programs, and a drain that waits for its end."""

from __future__ import annotations

from edl.client.cluster.connection import OpenStore
from edl.client.cluster.waiting import looks
from edl.client.waiting import USUAL, ClientLimits
from edl.coordination.cluster.store import ClusterStore
from edl.errors import TimedOut


class HostClient:
    """A client of the hosts of one cluster: :attr:`edl.client.Cluster.hosts`.

    Args:
        open_store: opens the records of the cluster.
    """

    def __init__(self, open_store: OpenStore) -> None:
        self._open = open_store

    def drain(self, host: str, timeout_s: float | None = None) -> None:
        """Let a host have no jobs from now on: those there shrink, or move to other hosts.

        Args:
            host: the name of the host.
            timeout_s: the time to wait until no job has anything there, in seconds; None to return
                as soon as the request is written.

        Raises:
            UsageError: the cluster has no such host.
            TimedOut: jobs have something there after ``timeout_s``; they go on leaving.
        """
        with self._open() as store:
            drain_host(store, host, timeout_s)

    def undrain(self, host: str) -> None:
        """Let a host that was drained have jobs again; ``host`` is its name.

        Raises:
            UsageError: the cluster has no such host.
        """
        with self._open() as store:
            store.hosts.set_drained(host, False)


def drain_host(store: ClusterStore, host: str, timeout_s: float | None) -> None:
    """Write that all jobs shall leave a host, and that it gets no others; wait for it if asked to.

    Args:
        store: the records of the cluster.
        host: the name of the host.
        timeout_s: how long to wait, in seconds, until no job has slots there; None: do not wait.

    Raises:
        UsageError: the cluster has no such host.
        TimedOut: jobs are still there after ``timeout_s``; they go on leaving.
    """
    store.hosts.set_drained(host, True)
    if timeout_s is not None:
        _wait_for_empty_host(store, host, timeout_s)


def _wait_for_empty_host(
    store: ClusterStore, host: str, timeout_s: float, limits: ClientLimits = USUAL
) -> None:
    """Wait until no job has slots on ``host``; return at once if the cluster has no such host.

    Raises:
        TimedOut: jobs still had slots there after ``timeout_s`` seconds.
        CoordinationError: ZooKeeper did not answer for all that time.
    """
    jobs: list[str] = []

    def look() -> list[str]:
        nonlocal jobs
        jobs = [job for one in store.hosts.list() if one.name == host for job in one.assigned.jobs]
        return jobs

    for found in looks(look, timeout_s, limits):
        if not found:
            return
    there = ", ".join(sorted(jobs))
    raise TimedOut(
        there,
        f"host {host} is drained, and after {timeout_s:g} s it still has {there}; they go on "
        "leaving",
    )
