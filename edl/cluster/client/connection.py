"""Connect to ZooKeeper and open a cluster there; create one that is not there yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from edl import config
from edl.client.connection import connected
from edl.cluster.client.access import known_access, open_cluster_store
from edl.cluster.nodes import (
    ClusterPaths,
    check_format,
    cluster_names,
    create_cluster,
    open_cluster,
)
from edl.cluster.records import ClusterRecord, parsed_word
from edl.cluster.store import ClusterStore
from edl.errors import UsageError
from edl.zookeeper.access import CLUSTERS, Access, announce, keep, new_secret
from edl.zookeeper.session import Session

DEFAULT_NAME = "main"  # of the cluster that `edl cluster start` creates
OpenStore = Callable[[], AbstractContextManager[ClusterStore]]
"""Returns a context manager that provides the records of a cluster in an open session."""


@contextmanager
def connected_cluster(
    name: str | None, zookeeper: str | None = None, secret: str | None = None
) -> Iterator[ClusterStore]:
    with connected(zookeeper) as session:
        yield open_cluster_store(session, name, secret)


def access_to_start(session: Session, name: str, settings: ClusterRecord) -> tuple[Access, bool]:
    """Return the name and secret of the cluster called `name`; create it if it is not there."""
    ClusterPaths(name)
    if word := parsed_word(config.load().secret or ""):
        raise UsageError(
            f"tenant {word[0]} may not start a cluster; that needs the secret of the cluster, "
            "which its administrator has, or none for a new one"
        )
    state = config.state_dir()
    if name in cluster_names(session):
        access, is_new = known_access(session, name), False
    else:
        access = Access(name, config.load().secret or new_secret())
        announce(state, name, access.secret, of=CLUSTERS)  # before anything needs it
        is_new = create_cluster(session, access, settings)
    keep(state, name, access.secret, of=CLUSTERS)
    check_format(open_cluster(session, access))
    return access, is_new
