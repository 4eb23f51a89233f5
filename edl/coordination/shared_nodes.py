"""Create the nodes that all jobs or clusters share (:func:`ensure_shared`), also in a new chroot.

A chroot is the optional root in the address of ZooKeeper, "host:port/chroot"; it may have parts.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NodeExistsError, NoNodeError
from kazoo.protocol.serialization import Create

from edl.coordination.access import SHARED
from edl.coordination.session import Session
from edl.errors import AccessDenied, CoordinationError


def ensure_shared(session: Session, what: str, path: str) -> None:
    """Create the node at `path`, the nodes above it, and the chroot, as far as they are missing."""
    # A ZooKeeper that has lost its data has no chroot either.
    ensure = partial(KazooClient.ensure_path_async, path=path, acl=SHARED)
    chroot = session.client.chroot
    try:
        session.call(what, ensure, repeat=True)
    except NoNodeError:  # of a chroot, kazoo creates the last node only
        for node in reversed(PurePosixPath(chroot).parents[:-1]):
            with suppress(NodeExistsError, NoNodeError, AccessDenied):
                session.call(what, partial(_create_outside, node=str(node)), repeat=True)
        try:
            session.call(what, ensure, repeat=True)
        except NoNodeError as error:
            raise CoordinationError(
                f"cannot {what}: ZooKeeper at {session.hosts} has no node {chroot}, and it could "
                "not be created; create it, or give another address by --zookeeper"
            ) from error


def _create_outside(client: KazooClient, node: str) -> Any:
    """Send the creation of `node`, whose path begins above the chroot of `client`."""
    pending = client.handler.async_result()
    client._call(Create(node, b"", SHARED, 0), pending)
    return pending
