"""The stand-ins of one cluster: its hosts, and the runs of its jobs on them."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Self

from benchmarks.cluster_scale.hosts import StandInHost
from benchmarks.cluster_scale.loop import Loop
from benchmarks.cluster_scale.runs import Book, StandInRuns
from benchmarks.cluster_scale.workload import SLOTS
from edl.cluster.nodes import open_cluster
from edl.cluster.store import ClusterStore
from edl.zookeeper.access import Access
from edl.zookeeper.session import Session

SESSION_HOSTS = 25  # hosts that share a session with ZooKeeper
SESSION_S = 30.0


class StandIns:
    """Hosts and runs of a cluster, which one thread keeps; use it as a context manager.

    Args:
        zookeeper: the ZooKeeper servers.
        access: the name and the secret of the cluster.
        hosts: how many hosts there are.
    """

    def __init__(self, zookeeper: str, access: Access, hosts: int) -> None:
        self._zookeeper, self._access, self._count = zookeeper, access, hosts
        self._stack = ExitStack()
        self.loop = Loop()
        self.book = Book()

    def __enter__(self) -> Self:
        """Connect to ZooKeeper, and begin to work; no host is offered yet."""
        store = ClusterStore(open_cluster(self._session(), self._access))
        self.runs = StandInRuns(self._zookeeper, store, self.book, self.loop)
        self._stack.callback(self.runs.close)
        self._hosts = []
        for number in range(self._count):
            if number % SESSION_HOSTS == 0:
                nodes = open_cluster(self._session(), self._access)
            name = f"h{number:03}"
            self._hosts.append(StandInHost(nodes, name, SLOTS, self.loop, self.runs))
        self.loop.start()
        self._stack.callback(self.loop.close)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def offer(self) -> None:
        """Offer all hosts to the cluster."""
        for host in self._hosts:
            host.offer()

    def quiet(self, is_quiet: bool) -> None:
        """Let no run write its status from now on, or let all of them again."""
        self.book.is_quiet = is_quiet

    def hasten(self, speed: float) -> None:
        """Let all jobs train faster from now on, by the factor ``speed``."""
        self.loop.wake("hasten", lambda: self.runs.hasten(speed))

    def check(self) -> None:
        """Raise an AssertionError if a stand-in has failed, or a device was used twice."""
        assert not self.loop.errors, self.loop.errors[0]
        assert not self.book.shared, self.book.shared[:3]

    def until_training(self, count: int, within_s: float) -> float:
        """Wait until so many runs train; return how long that took, in seconds."""
        began_s = time.monotonic()
        while self.runs.training() < count:
            self.check()
            took_s = time.monotonic() - began_s
            assert took_s < within_s, f"{self.runs.training()} of {count} jobs train"
            time.sleep(0.05)
        return time.monotonic() - began_s

    def _session(self) -> Session:
        session = Session(self._zookeeper, SESSION_S)
        session.start()
        self._stack.callback(session.close)
        return session
