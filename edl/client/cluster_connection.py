"""Find out whether a command is about a cluster, where it may also be about a job of `edl run`.

The rule: a job is one of the cluster that `--cluster` or EDL_CLUSTER names, or of the only one
whose secret this user has, if that cluster has a job of this name; else it is one of `edl run`.
"""

from __future__ import annotations

from edl import config
from edl.client.clusters import known_accesses, open_cluster_store
from edl.coordination.cluster_nodes import cluster_names
from edl.coordination.cluster_store import ClusterStore
from edl.coordination.reads import exists
from edl.coordination.secrets import CLUSTERS, stored
from edl.coordination.session import Session

NO_CLUSTER = ""  # as `--cluster ''`: a job of no cluster is meant


def store_of_job(session: Session, job: str | None, cluster: str | None) -> ClusterStore | None:
    """Return the records of the cluster that a command is about; None if it is about no cluster.

    Args:
        session: a session that is connected.
        job: the name of the job; None if the command was given none: then the cluster counts only
            if ``cluster`` or EDL_CLUSTER names it.
        cluster: the name of the cluster, as `--cluster` gives it; then the job must be one of it.
            Empty: the job is one of no cluster. None: not given.

    Raises:
        UnknownCluster, AccessDenied: the cluster that was named does not exist, or its secret is
            not known here.
        UnknownJob: ``cluster`` is given, and the cluster has no such job.
        CoordinationError: ZooKeeper is away.
    """
    if cluster == NO_CLUSTER or (job is None and not (cluster or config.load().cluster)):
        return None
    store = known_store(session, cluster)
    if store is None or job is None or _has(store, job):
        return store
    if cluster is not None:
        raise store.nodes.unknown_job(job)
    return None


def known_store(session: Session, cluster: str | None) -> ClusterStore | None:
    """Return the records of the cluster that is meant where none need be meant; None without one.

    It is the one that ``cluster`` or EDL_CLUSTER names, or else the only one in this ZooKeeper
    whose secret this user has stored.

    Raises:
        UnknownCluster, AccessDenied: the cluster that was named does not exist, or its secret is
            not known here.
        CoordinationError: ZooKeeper is away.
    """
    if named := cluster or config.load().cluster:
        return open_cluster_store(session, named)
    if not knows_clusters():
        return None  # without a question to ZooKeeper
    mine = sorted(stored(config.state_dir(), cluster_names(session), CLUSTERS))
    found = known_accesses(session, mine, None)
    return open_cluster_store(session, found[0].job) if len(found) == 1 else None


def knows_clusters() -> bool:
    """Return whether EDL_CLUSTER names a cluster, or this user has stored the secret of one."""
    return bool(config.load().cluster) or (config.state_dir() / CLUSTERS).is_dir()


def _has(store: ClusterStore, job: str) -> bool:
    """Return whether the cluster of ``store`` has a job of that name."""
    return store.nodes.read(exists(store.paths.manifest(job)))[0] is not None
