"""Find a cluster of jobs and its secret, and open it; create one that is not there yet."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from edl import config
from edl.client.connection import connected
from edl.coordination.access import Access
from edl.coordination.cluster_nodes import cluster_names, create_cluster, open_cluster
from edl.coordination.cluster_paths import ClusterPaths
from edl.coordination.cluster_store import ClusterStore
from edl.coordination.reads import acl
from edl.coordination.secrets import CLUSTERS, announce, candidates, keep, new_secret
from edl.coordination.session import Session
from edl.core.cluster.records import FORMAT, ClusterRecord
from edl.errors import AccessDenied, UnknownCluster, UsageError, some

DEFAULT_NAME = "main"  # of the cluster that `edl cluster start` creates


@contextmanager
def connected_cluster(
    name: str | None, zookeeper: str | None = None, secret: str | None = None
) -> Iterator[ClusterStore]:
    """While entered, provide a cluster in a ZooKeeper session.

    Args:
        name: the name of the cluster; None for that of EDL_CLUSTER, or else the only one whose
            secret is known here.
        zookeeper: the ZooKeeper servers, ``host:port,...``; None for those of EDL_ZOOKEEPER, or
            else the local server of this user.
        secret: the secret of the cluster; None for that of EDL_SECRET or of its file, or else one
            in this user's state directory.

    Raises:
        UnknownCluster: there is no such cluster.
        AccessDenied: its secret is not known here.
        UsageError: no cluster could be chosen, or its records have a format that this edl cannot
            read, or no ZooKeeper is known.
        ZooKeeperUnreachable: ZooKeeper does not answer.
    """
    with connected(zookeeper) as session:
        yield open_cluster_store(session, name, secret)


def open_cluster_store(
    session: Session, name: str | None, secret: str | None = None
) -> ClusterStore:
    """Return the records of a cluster, which ``session`` then belongs to.

    The arguments and errors are those of :func:`connected_cluster`.
    """
    access = known_access(session, name, secret)
    store = ClusterStore(open_cluster(session, access), by=user_here())
    check_format(access.job, store.settings())
    return store


def known_access(session: Session, name: str | None, secret: str | None = None) -> Access:
    """Return the name and the secret of a cluster that exists, as far as they are known here.

    The arguments and errors are those of :func:`connected_cluster`.
    """
    names, name = cluster_names(session), name or config.load().cluster
    if name is not None:
        ClusterPaths(name)
        if name not in names:
            raise UnknownCluster(name, names)
        found = known_accesses(session, [name], secret)
        if not found:
            raise AccessDenied(name, _unknown_secret(name))
        return found[0]
    found = known_accesses(session, names, secret)
    if len(found) == 1:
        return found[0]
    if found:
        known = some([access.job for access in found])
        raise UsageError(f"there are {len(found)} clusters: name one with --cluster: {known}")
    if names:
        raise UsageError(
            "no cluster whose secret is known here is there; for another one give its name by "
            "--cluster and its secret by --secret-file"
        )
    raise UsageError("there is no cluster; start one with `edl cluster start`")


def known_accesses(session: Session, names: Sequence[str], secret: str | None) -> list[Access]:
    """Return the accesses of those clusters called ``names`` that a known secret opens.

    ``secret`` is the one that the user gave; None for that of this process's configuration.
    """
    given, state = secret or config.load().secret, config.state_dir()
    known = [Access(n, one) for n in names for one in candidates(state, n, given, of=CLUSTERS)]
    session.identify(*known)
    roots = [acl(ClusterPaths(name).root) for name in names]
    acls = dict(zip(names, session.read_open("read ACLs", roots), strict=True))
    opens = {one.job: one for one in known if acls[one.job] and one.opens(acls[one.job][0])}
    return [opens[name] for name in names if name in opens]


def access_to_start(session: Session, name: str, settings: ClusterRecord) -> tuple[Access, bool]:
    """Return the access to the cluster called ``name``, which is created if it is not there.

    Its secret is kept in this user's state directory.

    Args:
        session: the session to read and write with; it belongs to the cluster afterwards.
        name: the name of the cluster.
        settings: how the leader of a new cluster decides.

    Returns:
        The access, and whether the cluster was created.

    Raises:
        AccessDenied: the cluster is there, and its secret is not known here.
        UsageError: the records of the cluster have a format that this edl cannot read.
        ConfigError: the name cannot be that of a cluster.
        CoordinationError: ZooKeeper is away.
    """
    ClusterPaths(name)
    state = config.state_dir()
    if name in cluster_names(session):
        access, is_new = known_access(session, name), False
    else:
        access = Access(name, config.load().secret or new_secret())
        announce(state, name, access.secret, of=CLUSTERS)  # before anything needs it
        is_new = create_cluster(session, access, settings)
    keep(state, name, access.secret, of=CLUSTERS)
    check_format(name, ClusterStore(open_cluster(session, access)).settings())
    return access, is_new


def check_format(name: str, settings: ClusterRecord) -> None:
    """Raise an error if the records of the cluster called ``name`` have another format than ours.

    Args:
        name: the name of the cluster.
        settings: its record.

    Raises:
        UsageError: they have.
    """
    if settings.format != FORMAT:
        raise UsageError(
            f"cluster {name} has records of format {settings.format}, and this edl reads and "
            f"writes format {FORMAT}; use the version of edl with which the cluster runs"
        )


def user_here() -> str:
    """Return this user and machine as the event log names them, like ``ann@node7``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user that has no entry in /etc/passwd
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


def _unknown_secret(name: str) -> str:
    """Return the message for a cluster whose secret is not known here."""
    return (
        f"the secret of cluster {name} is not known here; give --secret-file FILE: on the machine "
        f"where the cluster was started it is in ~/.local/state/edl/clusters/{name}/secret"
    )
