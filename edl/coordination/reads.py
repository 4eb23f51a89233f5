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
    """Do nothing; as the ``wake`` of a read, make the session keep the answer until a change.

    ``wake`` is the function that is called when the node changes. With this one the node is
    watched, so it is read again only after a change, but no code of the caller runs at the change.
    """


GET, CHILDREN, _EXISTS = "get_async", "get_children_async", "exists_async"


@dataclass(frozen=True)
class Read:
    """A read of one node, which :meth:`Session.read_all` can send.

    With a ``wake`` the read sets a watch, and the session keeps its answer: the node is not read
    again until the watch fires. Only a read by ``exists`` sets a watch on a node that does not
    exist.

    Attributes:
        method: The name of the asynchronous method of kazoo's client that reads.
        path: The path of the node.
        wake: Called once, on kazoo's connection thread, when the node changes or the connection is
            lost; it must not block. None sets no watch.
    """

    method: str
    path: str
    wake: OnChange = None

    def __hash__(self) -> int:
        """Return the hash of the path only, which is fast.

        A leader looks up thousands of reads in a dictionary each time it reads its job.
        """
        return hash(self.path)

    @property
    def watches_absent(self) -> bool:
        """Whether this read sets its watch also on a node that does not exist."""
        return self.method == _EXISTS

    def __call__(self, client: KazooClient, watch: Callable[[object], None] | None = None) -> Any:
        """Send this read to ZooKeeper, and return kazoo's pending result.

        Args:
            client: The kazoo client to send it on.
            watch: Called by kazoo, with its event, when the watch of this read fires; None sets no
                watch.
        """
        return getattr(client, self.method)(self.path, watch=watch)


def get(path: str, wake: OnChange = None) -> Read:
    """Return a read whose answer is the (data, stat) of the node at ``path``.

    The answer is None if there is no such node.

    Args:
        path: The path of the node.
        wake: Called when the node changes or is removed, if it was there at the read. None: the
            node is not watched.
    """
    return Read(GET, path, wake)


def children(path: str, wake: OnChange = None) -> Read:
    """Return a read whose answer is the list of the names of the children of a node, unordered.

    The answer is None if there is no such node.

    Args:
        path: The path of the node.
        wake: Called when a child is created or removed, or the node is removed, if it was there at
            the read. None: the node is not watched.
    """
    return Read(CHILDREN, path, wake)


def exists(path: str, wake: OnChange = None) -> Read:
    """Return a read of the stat of the node at ``path``; its answer is None without a node.

    Args:
        path: The path of the node.
        wake: Called when the node is created, changed or removed, whether or not it was there at
            the read. None: the node is not watched.
    """
    return Read(_EXISTS, path, wake)


def acl(path: str) -> Issue:
    """Return a read whose answer is the (ACL, stat) of the node at ``path``."""

    def issue(client: KazooClient) -> object:
        return client.get_acls_async(path)

    return issue


def delete_node(path: str) -> Issue:
    """Return a request that deletes the node at ``path``, whatever its version.

    :meth:`Session.read_all` takes a node that is missing for no error.
    """

    def issue(client: KazooClient) -> object:
        return client.delete_async(path)

    return issue
