"""The hosts of a cluster as an object for Python programs, and a drain that waits for its end."""

from __future__ import annotations

from edl.client.cluster.connection import OpenStore
from edl.client.cluster.waiting import looks
from edl.client.waiting import USUAL, ClientLimits
from edl.coordination.cluster.store import ClusterStore
from edl.errors import TimedOut


class HostClient:
    """A client of the hosts of one cluster: `Cluster.hosts`."""

    def __init__(self, open_store: OpenStore) -> None:
        self._open = open_store

    def drain(self, host: str, timeout_s: float | None = None) -> None:
        """Let a host have no jobs from now on: those there shrink, or move to other hosts.

        With ``timeout_s``, in seconds, wait until no job has anything there. Raises UsageError if
        the cluster has no such host, TimedOut if jobs go on leaving after that time.
        """
        with self._open() as store:
            drain_host(store, host, timeout_s)

    def undrain(self, host: str) -> None:
        """Let a host that was drained have jobs again; `host` is its name."""
        with self._open() as store:
            store.hosts.set_drained(host, False)


def drain_host(store: ClusterStore, host: str, timeout_s: float | None) -> None:
    """Let all jobs leave a host, which gets no others; wait for it if asked to."""
    store.hosts.set_drained(host, True)
    if timeout_s is not None:
        _wait_for_empty_host(store, host, timeout_s)


def _wait_for_empty_host(
    store: ClusterStore, host: str, timeout_s: float, limits: ClientLimits = USUAL
) -> None:
    """Wait until no job has slots on `host`; return at once if the cluster has no such host."""
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
