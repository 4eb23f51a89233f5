"""Open the records of a cluster: by its name, or of the only one whose secret this user has.

A command whose argument may be a job of a cluster or one of `edl run` finds out here which it is.
"""

from __future__ import annotations

import getpass
import socket
from collections.abc import Sequence

from edl import config
from edl.coordination.access import Access
from edl.coordination.cluster_nodes import cluster_names, open_cluster
from edl.coordination.cluster_paths import ClusterPaths
from edl.coordination.cluster_store import ClusterStore
from edl.coordination.reads import acl, exists
from edl.coordination.secrets import CLUSTERS, candidates, stored
from edl.coordination.session import Session
from edl.errors import AccessDenied, UnknownCluster, UsageError, some

NO_CLUSTER = ""  # as `--cluster ''`: of no cluster


def cluster_store(
    session: Session, name: str | None = None, secret: str | None = None
) -> ClusterStore:
    """Return the records of a cluster; the newest identity of ``session`` is the cluster's then.

    Args:
        session: a session that is connected.
        name: the name of the cluster; None for EDL_CLUSTER, or else the only cluster in this
            ZooKeeper whose secret is known here.
        secret: the secret of the cluster; None for EDL_SECRET or those that this user has stored.

    Raises:
        UnknownCluster: there is no cluster of that name.
        AccessDenied: the cluster exists, and its secret is not known here.
        UsageError: without a name: no cluster, or more than one, could be chosen.
        CoordinationError: ZooKeeper is away.
    """
    settings = config.load()
    given = secret or settings.secret
    name = name or settings.cluster
    if name:
        return _opened(session, name, given)
    names = cluster_names(session)
    known = _unlocked(session, names, given)
    if len(known) > 1:
        listed = some([*known])
        raise UsageError(f"{len(known)} clusters are known here, name one by --cluster: {listed}")
    if not known:
        raise UsageError(_none_known(names))
    return _open(session, *known.values())


def store_of_job(
    session: Session, job: str | None, cluster: str | None, secret: str | None = None
) -> ClusterStore | None:
    """Return the records of the cluster that a command is about; None if it is about no cluster.

    A job is one of the cluster if the cluster has a job of that name. The cluster is the one that
    ``cluster`` or EDL_CLUSTER names, or else the only one whose secret this user has.

    Args:
        session: a session that is connected.
        job: the name of the job; None if the command was given none: then the cluster counts only
            if ``cluster`` or EDL_CLUSTER names it.
        cluster: the name of the cluster, as `--cluster` gives it; then the job must be one of it.
            Empty: the job is one of no cluster. None: not given.
        secret: the secret of the cluster or job; None for EDL_SECRET or stored ones.

    Raises:
        UnknownCluster, AccessDenied: the cluster that was named does not exist, or its secret is
            not known here.
        UnknownJob: ``cluster`` is given, and the cluster has no such job.
        CoordinationError: ZooKeeper is away.
    """
    if cluster == NO_CLUSTER:
        return None
    if job is None and not (cluster or config.load().cluster):
        return None
    store = known_store(session, cluster, secret)
    if store is None or job is None or _has(store, job):
        return store
    if cluster is not None:
        raise store.nodes.unknown_job(job)
    return None


def known_store(
    session: Session, cluster: str | None, secret: str | None = None
) -> ClusterStore | None:
    """Return the records of the cluster that is meant where none need be meant; None without one.

    It is the one that ``cluster`` or EDL_CLUSTER names, or else the only one whose secret this user
    has stored. The arguments and the errors are those of :func:`cluster_store`.
    """
    settings = config.load()
    if named := cluster or settings.cluster:
        return cluster_store(session, named, secret)
    if not knows_clusters():
        return None  # without a question to ZooKeeper
    known = sorted(stored(config.state_dir(), cluster_names(session), CLUSTERS))
    found = _unlocked(session, known, secret or settings.secret)
    return _open(session, *found.values()) if len(found) == 1 else None


def knows_clusters() -> bool:
    """Return whether EDL_CLUSTER names a cluster, or this user has stored the secret of one."""
    return bool(config.load().cluster) or (config.state_dir() / CLUSTERS).is_dir()


def who() -> str:
    """Return this user and this machine, for the event log of a cluster."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user that has no entry in /etc/passwd
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


def _has(store: ClusterStore, job: str) -> bool:
    """Return whether the cluster of ``store`` has a job of that name."""
    return store.nodes.read(exists(store.paths.manifest(job)))[0] is not None


def _unlocked(session: Session, names: Sequence[str], given: str | None) -> dict[str, Access]:
    """Return the secret that opens each of the clusters ``names``, for those that one opens.

    Afterwards the session has proved all secrets that were tried.

    Args:
        session: the session to read with.
        names: the names of the clusters.
        given: the secret that the user gave; None: only stored ones are tried.
    """
    state = config.state_dir()
    known = {
        name: [Access(name, one) for one in candidates(state, name, given, CLUSTERS)]
        for name in names
    }
    session.identify(*(access for tried in known.values() for access in tried))
    acls = session.read_open("find a cluster", [acl(ClusterPaths(name).root) for name in names])
    found: dict[str, Access] = {}
    for name, answer in zip(names, acls, strict=True):
        fits = [access for access in known[name] if answer is not None and access.opens(answer[0])]
        if fits:
            found[name] = fits[0]
    return found


def _open(session: Session, access: Access) -> ClusterStore:
    """Return the records of the cluster that ``access`` opens, written in the name of this user."""
    return ClusterStore(open_cluster(session, access), by=who())


def _opened(session: Session, name: str, given: str | None) -> ClusterStore:
    """Return the records of the cluster ``name``; arguments as of :func:`_unlocked`.

    Raises:
        UnknownCluster: there is no such cluster.
        AccessDenied: no secret that is known here opens it.
    """
    found = _unlocked(session, [name], given)
    if found:
        return _open(session, found[name])
    names = cluster_names(session)
    if name not in names:
        raise UnknownCluster(name, names)
    tried = candidates(config.state_dir(), name, given, CLUSTERS)
    what = "is another than those known here" if tried else "is not known here"
    raise AccessDenied(
        name,
        f"the secret of cluster {name} {what}; give it by --secret-file: on the machine of `edl "
        f"cluster start` it is in ~/.local/state/edl/clusters/{name}/secret",
    )


def _none_known(names: Sequence[str]) -> str:
    """Return the sentence that no cluster is known here; ``names`` are those in ZooKeeper."""
    if names:
        return (
            "no cluster whose secret is known here is in this ZooKeeper; give its secret by "
            f"--secret-file, and its name by --cluster: {some(names)}"
        )
    return "there is no cluster in this ZooKeeper; start one with `edl cluster start`"
