"""Create, find and open a cluster in ZooKeeper: only a session with its secret can read its nodes.

:func:`open_cluster` gives the :class:`ClusterNodes` that all other modules of a cluster need. The
nodes that a session creates are closed with the secret that the session has proved last. So a
session that writes a cluster must not prove the secret of a job after the cluster's; a controller,
which also reads jobs, has two sessions.
"""

from __future__ import annotations

from kazoo.client import TransactionRequest

from edl.coordination.access import Access
from edl.coordination.cluster.paths import CLUSTERS, ClusterPaths
from edl.coordination.nodes import Nodes
from edl.coordination.reads import acl, children, exists
from edl.coordination.session import Refused, Session
from edl.coordination.shared_nodes import ensure_shared
from edl.coordination.wire import encode
from edl.core.cluster.records import ClusterRecord
from edl.core.names import is_name
from edl.errors import AccessDenied, CoordinationError, UnknownCluster, UnknownJob


class ClusterNodes(Nodes[ClusterPaths]):
    """Access to the nodes of one cluster through one session; get one from `open_cluster`."""

    def __init__(self, session: Session, paths: ClusterPaths) -> None:
        super().__init__(session, paths, f"cluster {paths.name}")

    def unknown(self) -> UnknownCluster:
        """Read the names of all clusters, and return the error that this one does not exist."""
        return UnknownCluster(self.paths.name, cluster_names(self.session))

    def uid(self) -> str:
        """Return a text that no other cluster has, in another ZooKeeper or at another time."""
        found = self.read(exists(self.paths.root))[0]
        if found is None:
            raise self.unknown()
        return f"{found.czxid:x}-{found.ctime}"

    def unknown_job(self, job: str) -> UnknownJob:
        """Return the error for a job that this cluster does not have; its text names its jobs."""
        names = self.read(children(self.paths.jobs))[0]
        if names is None:
            raise self.unknown()
        return UnknownJob(job, tuple(sorted(names)), "edl submit")

    def check_administrator(self, what: str) -> None:
        """Raise a UsageError if the session is a tenant's, who may not do `what`, a verb."""

    def check_session(self) -> None:
        """Raise an error if the session would close what it creates with another secret."""
        access = self.session.access
        if access is None or access.job != self.paths.name:
            raise CoordinationError(
                f"{self.what} can only be written in a session of its own secret: this one has "
                f"that of {'nothing' if access is None else access.job}"
            )


def cluster_names(session: Session) -> tuple[str, ...]:
    """Return the names of all clusters, sorted, including those that this session cannot open."""
    names = session.read_all("list clusters", [children(CLUSTERS)])[0] or ()
    return tuple(sorted(name for name in names if is_name(name)))


def create_cluster(session: Session, access: Access, record: ClusterRecord) -> bool:
    """Create a cluster if there is none of that name, and prove its secret in `session`."""
    paths = ClusterPaths(access.job)
    session.identify(access)
    ensure_shared(session, "create a cluster", CLUSTERS)
    contents = {paths.cluster: encode(record.to_json())}

    def build(transaction: TransactionRequest) -> None:
        for path in paths.fixed:
            transaction.create(path, contents.get(path, b""), acl=access.acl)

    try:
        session.transact(f"create cluster {paths.name}", build)
    except Refused:
        open_cluster(session, access)
        return False
    return True


def open_cluster(session: Session, access: Access) -> ClusterNodes:
    """Prove the secret of a cluster in `session`, and return access to the cluster's nodes."""
    paths = ClusterPaths(access.job)
    session.identify(access)
    nodes = ClusterNodes(session, paths)
    found = session.read_open("open a cluster", [acl(paths.root), exists(paths.root)])
    if found[1] is None:
        raise nodes.unknown()
    # Else anybody could create a node with the name of a cluster, and a host would run the commands
    # in it.
    if found[0] is None or not access.opens(found[0][0]):
        raise AccessDenied(
            paths.name,
            f"cluster {paths.name} has another secret than the one given; give the secret with "
            "which it was started",
        )
    return nodes
