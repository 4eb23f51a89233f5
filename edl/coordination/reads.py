"""The reads of one node, to be sent together by :meth:`Session.read_all`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kazoo.client import KazooClient

OnChange = Callable[[], None] | None
"""Called once when what was read changes, or when the connection is lost; must not block.

It runs on the thread that reads from the connection.
"""

Issue = Callable[[KazooClient], Any]
"""Starts a request on a client and returns kazoo's asynchronous result."""


def ignore_changes() -> None:
    """A waker for what need not be read anew until it changes, and calls nobody when it does."""


_EXISTS = "exists_async"


@dataclass(frozen=True)
class Read:
    """One read. With a ``wake`` it is sent with a watch, and its answer may be kept until then."""

    method: str  # of kazoo's client
    path: str
    wake: OnChange = None

    def __hash__(self) -> int:
        """Of the path only: a leader looks up thousands of reads in each turn."""
        return hash(self.path)

    @property
    def watches_absent(self) -> bool:
        """Whether ZooKeeper watches for a node that is not there."""
        return self.method == _EXISTS

    def __call__(self, client: KazooClient, watch: Callable[[object], None] | None = None) -> Any:
        return getattr(client, self.method)(self.path, watch=watch)


def get(path: str, wake: OnChange = None) -> Read:
    """Data and stat of a node."""
    return Read("get_async", path, wake)


def children(path: str, wake: OnChange = None) -> Read:
    """Names of a node's children."""
    return Read("get_children_async", path, wake)


def exists(path: str, wake: OnChange = None) -> Read:
    """Stat of a node, or None; the watch is set in both cases."""
    return Read(_EXISTS, path, wake)


def acl(path: str) -> Issue:
    """The ACL of a node, and its stat."""

    def issue(client: KazooClient) -> object:
        return client.get_acls_async(path)

    return issue


def delete(path: str) -> Issue:
    """Remove a node."""

    def issue(client: KazooClient) -> object:
        return client.delete_async(path)

    return issue
