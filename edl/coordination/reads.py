"""Describe requests about one node each, which :meth:`Session.read_all` sends together.

:func:`get`, :func:`children`, :func:`exists`, :func:`acl` and :func:`delete_node` make them; they
send nothing.
"""

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
    """Do nothing; as the `wake` of a read, make the session keep the answer until a change."""


GET, CHILDREN, _EXISTS = "get_async", "get_children_async", "exists_async"


@dataclass(frozen=True)
class Read:
    """A read of one node, which `read_all` can send."""

    method: str  # of kazoo's client
    path: str
    # called once, on kazoo's connection thread, when the node changes or the connection is lost, so
    # it must not block; with it the session keeps the answer until then
    wake: OnChange = None

    def __hash__(self) -> int:
        # Fast: a leader looks up thousands of reads each time it reads its job.
        return hash(self.path)

    @property
    def watches_absent(self) -> bool:
        """Whether this read sets its watch also on a node that does not exist."""
        return self.method == _EXISTS

    def __call__(self, client: KazooClient, watch: Callable[[object], None] | None = None) -> Any:
        return getattr(client, self.method)(self.path, watch=watch)


def get(path: str, wake: OnChange = None) -> Read:
    """Return a read of the (data, stat) of a node, or None; an absent node is not watched."""
    return Read(GET, path, wake)


def children(path: str, wake: OnChange = None) -> Read:
    """Return a read of the names of the children of a node, unordered; None without a node."""
    return Read(CHILDREN, path, wake)


def exists(path: str, wake: OnChange = None) -> Read:
    """Return a read of the stat of the node at `path`, or None; an absent node is watched, too."""
    return Read(_EXISTS, path, wake)


def acl(path: str) -> Issue:
    """Return a read whose answer is the (ACL, stat) of the node at `path`."""

    def issue(client: KazooClient) -> object:
        return client.get_acls_async(path)

    return issue


def delete_node(path: str) -> Issue:
    """Return a request that deletes the node at `path`, whatever its version."""

    def issue(client: KazooClient) -> object:
        return client.delete_async(path)

    return issue
