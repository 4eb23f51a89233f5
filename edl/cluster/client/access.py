"""Find a cluster and its secret, and open it in a session.

A command may be about a job of a cluster or about one of `edl run`. The rule: a job is one of the
cluster that `--cluster` or EDL_CLUSTER names, or of the only one that the given secret opens, or of
the only one whose secret is known here, if that cluster has a job of this name; else it is one of
`edl run`.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from edl import config
from edl.cluster.nodes import ClusterPaths, check_format, cluster_names, open_cluster
from edl.cluster.records import parsed_word
from edl.cluster.store import ClusterStore
from edl.cluster.submission import TenantStore, open_tenant_store
from edl.errors import AccessDenied, UnknownCluster, UsageError, some
from edl.zookeeper.access import CLUSTERS, Access, candidates, stored
from edl.zookeeper.paths import JobPaths
from edl.zookeeper.reads import acl, exists
from edl.zookeeper.session import Session

NO_CLUSTER = ""  # as `--cluster ''`: a job of no cluster is meant


def open_cluster_store(
    session: Session, name: str | None, secret: str | None = None
) -> ClusterStore:
    word = parsed_word(secret or config.load().secret or "")
    if word is not None:
        return open_tenant_store(session, name or config.load().cluster, *word)
    access = known_access(session, name, secret)
    nodes = open_cluster(session, access)
    check_format(nodes)
    return ClusterStore(nodes, by=user_here())


def known_access(session: Session, name: str | None, secret: str | None = None) -> Access:
    names, name = cluster_names(session), name or config.load().cluster
    if name is not None:
        ClusterPaths(name)
        if name not in names:
            raise UnknownCluster(name, names)
        found = known_accesses(session, [name], secret)
        if not found:
            raise AccessDenied(name, _unknown_secret(name, secret))
        return found[0]
    found = _meant(known_accesses(session, names, secret), secret)
    if len(found) == 1:
        return found[0]
    if found:
        known = some([access.job for access in found])
        raise UsageError(f"there are {len(found)} clusters: name one with --cluster: {known}")
    if names:
        raise UsageError(
            f"cluster {some(names)} is there, and its secret is not known here: give it by "
            "--secret-file; where it was started it is in ~/.local/state/edl/clusters/NAME/secret"
        )
    raise UsageError("there is no cluster; start one with `edl cluster start`")


def known_accesses(session: Session, names: Sequence[str], secret: str | None) -> list[Access]:
    given, state = secret or config.load().secret, config.state_dir()
    known = [Access(n, one) for n in names for one in candidates(state, n, given, of=CLUSTERS)]
    session.identify(*known)
    roots = [acl(ClusterPaths(name).root) for name in names]
    acls = dict(zip(names, session.read_open("read ACLs", roots), strict=True))
    opens = {one.job: one for one in known if acls[one.job] and one.opens(acls[one.job][0])}
    return [opens[name] for name in names if name in opens]


def store_of_job(session: Session, job: str | None, cluster: str | None) -> ClusterStore | None:
    """Return the records of the cluster that a command is about; None if it is about no cluster."""
    if cluster == NO_CLUSTER or (job is None and not (cluster or config.load().cluster)):
        return None
    store = known_store(session, cluster)
    if store is None or job is None or store.jobs.has(job):
        return store
    of_run = exists(JobPaths(job).root)
    is_tenants = isinstance(store, TenantStore) and session.read_all("look", [of_run])[0] is None
    if is_tenants:
        store.jobs.get(job)  # raises the error that names the tenant's own jobs
    if cluster is not None:
        raise store.nodes.unknown_job(job)
    return None


def known_store(session: Session, cluster: str | None) -> ClusterStore | None:
    """Return the records of the cluster that a command may be about; None: none is meant."""
    named = cluster or config.load().cluster
    if named or parsed_word(config.load().secret or ""):
        return open_cluster_store(session, named)
    if not knows_clusters():
        return None  # without a question to ZooKeeper
    names = cluster_names(session)
    if not config.load().secret:  # else it may be that of any
        names = tuple(sorted(stored(config.state_dir(), names, CLUSTERS)))
    found = _meant(known_accesses(session, names, None), None)
    return open_cluster_store(session, found[0].job) if len(found) == 1 else None


def knows_clusters() -> bool:
    own = config.load()
    if own.cluster or own.secret:
        return True
    return (config.state_dir() / CLUSTERS).is_dir()


def user_here() -> str:
    """Return this user and machine as the event log names them, like `ann@node7`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user that has no entry in /etc/passwd
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


def _meant(accesses: list[Access], secret: str | None) -> list[Access]:
    given = secret or config.load().secret
    opened = [access for access in accesses if access.secret == given]
    return opened if len(opened) == 1 else accesses


def _unknown_secret(name: str, secret: str | None) -> str:
    tried = candidates(config.state_dir(), name, secret or config.load().secret, of=CLUSTERS)
    what = "is another than those known here" if tried else "is not known here"
    return (
        f"the secret of cluster {name} {what}; give --secret-file FILE: on the machine "
        f"where the cluster was started it is in ~/.local/state/edl/clusters/{name}/secret"
    )


# ------------------------------------------------------------
# Tell whether a directory is on a file system that other machines may use at the same time.


_MOUNTS = Path("/proc/self/mountinfo")

_NETWORK = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "ceph", "beegfs", "afs"),
        *("glusterfs", "panfs", "pvfs2", "ocfs2", "gfs2", "9p", "virtiofs"),
    )
)

_USER_SPACE = "fuse"  # sshfs, GlusterFS, GPFS gateways and many more


def is_on_network(directory: Path) -> bool:
    device = directory.stat().st_dev
    try:
        mounts = _MOUNTS.read_text(errors="replace")
    except OSError:
        return False
    kind = file_system(f"{os.major(device)}:{os.minor(device)}", mounts)
    return kind in _NETWORK or kind.startswith(_USER_SPACE)


def file_system(device: str, mounts: str) -> str:
    for line in mounts.splitlines():
        mount, _, about = line.partition(" - ")
        if mount.split(" ")[2:3] == [device]:
            return about.partition(" ")[0]
    return ""
