"""The reads of one node, to be sent together by :meth:`Session.read_all`."""

from __future__ import annotations

from collections.abc import Callable

from kazoo.client import KazooClient

from edl.coordination.session import Issue, watch

Waker = Callable[[], None] | None
"""Called once when what was read changes, or when the connection is lost; must not block."""


def get(path: str, wake: Waker = None) -> Issue:
    """Data and stat of a node."""

    def issue(client: KazooClient) -> object:
        return client.get_async(path, watch=watch(wake))

    return issue


def children(path: str, wake: Waker = None) -> Issue:
    """Names of a node's children."""

    def issue(client: KazooClient) -> object:
        return client.get_children_async(path, watch=watch(wake))

    return issue


def exists(path: str, wake: Waker = None) -> Issue:
    """Stat of a node, or None; the watch is set in both cases."""

    def issue(client: KazooClient) -> object:
        return client.exists_async(path, watch=watch(wake))

    return issue


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
