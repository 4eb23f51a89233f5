"""Create, find and open a cluster in ZooKeeper: only a session with its secret can read its nodes.

:func:`open_cluster` gives the :class:`ClusterNodes` that all other modules of a cluster need. The
nodes that a session creates are closed with the secret that the session has proved last. So a
session that writes a cluster must not prove the secret of a job after the cluster's; a controller,
which also reads jobs, has two sessions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib import metadata

from kazoo.client import TransactionRequest

from edl.cluster.records import FORMAT, ClusterRecord
from edl.errors import (
    AccessDenied,
    CoordinationError,
    UnknownCluster,
    UnknownJob,
    UnsupportedFormat,
)
from edl.text import is_name
from edl.zookeeper.access import Access
from edl.zookeeper.nodes import Nodes, R, ensure_shared, record
from edl.zookeeper.paths import check_name
from edl.zookeeper.reads import OnChange, acl, children, encode, exists, get
from edl.zookeeper.session import Refused, Session

# ------------------------------------------------------------
# Define the layout in ZooKeeper of a cluster: the path of each node, and what the node holds.
#
# A line has the path, the record in the node, when the node is empty, and who writes it (the leader
# of the cluster, a client, or the owner of the host)::
#
#     /edl/clusters/<cluster>/
#         cluster        ClusterRecord: how the leader decides; clients; compare-and-set
#         allocation     AllocationRecord: the policy's last decision; empty before it; the leader
#         reasons        JobReasons: why each job has what it has; empty before the first; the
#                        leader, at most once a second
#         leases         LeaseTable: the hosts that another engine lends; absent before the first;
#                        the leader
#         leader         the leader; empty before the first term; written when a term starts
#         election/<controller>-<token>-<sequence>   ephemeral; a candidate; the lowest leads
#         keys/<digest>  {job}: which job was submitted with the key
#         jobs/<job>     {key}: the digest of the key that the job was submitted with
#         jobs/<job>/manifest   JobManifest; never changes; its creation is the submission
#         jobs/<job>/wanted     Wanted; clients; compare-and-set
#         jobs/<job>/life       JobLifecycle; empty until the leader has seen the job; the leader
#         jobs/<job>/secret     {secret}: of the job's runs; the leader creates it once
#         jobs/<job>/measured   MeasuredThroughput: of former runs; absent before there are any
#         secrets/<name> StoredSecret: a secret of users, sealed; clients
#         queues/<name>  QueueRecord: a queue of jobs; clients; compare-and-set
#         tenants/<T>    TenantRecord: a tenant; clients, once
#         tenants/<T>/inbox/r-<sequence>  TenantRequest; the tenant; the leader removes it
#         tenants/<T>/responses   TenantResponses: of the newest requests; the leader
#         tenants/<T>/jobs/<job>  exists while the job of the tenant does; the leader
#         tenants/<T>/view      TenantView: why its jobs have what they have; the leader
#         hosts/<host>   HostOwner: who offers the host; its version is the host's fence
#         hosts/<host>/offer    HostOffer; ephemeral; the owner
#         hosts/<host>/drained  exists while the host shall have no jobs; clients
#         hosts/<host>/assigned HostAssignment; empty until there is one; the leader
#         hosts/<host>/report   HostReport; empty until there is one; the owner
#         events/e-<sequence>   ClusterEvent; clients, the leader
#
# All nodes have the ACL of the cluster's secret (see `access`). Some of those of tenants, and of
# their jobs, also give a tenant rights (docs/adr/0027).


CLUSTERS = "/edl/clusters"


class ClusterPaths:
    def __init__(self, name: str) -> None:
        self.name = check_name("cluster", name)
        self.root = f"{CLUSTERS}/{self.name}"
        self.cluster = f"{self.root}/cluster"
        self.allocation = f"{self.root}/allocation"
        self.reasons = f"{self.root}/reasons"
        self.leases = f"{self.root}/leases"
        self.leader = f"{self.root}/leader"
        self.election = f"{self.root}/election"
        self.keys = f"{self.root}/keys"
        self.jobs = f"{self.root}/jobs"
        self.secrets = f"{self.root}/secrets"
        self.queues = f"{self.root}/queues"
        self.tenants = f"{self.root}/tenants"
        self.hosts = f"{self.root}/hosts"
        self.events = f"{self.root}/events"

    @property
    def fixed(self) -> tuple[str, ...]:
        values = (self.cluster, self.allocation, self.reasons, self.leader, self.election)
        nodes = (self.keys, self.jobs, self.secrets, self.queues, self.tenants, self.hosts)
        return (self.root, *values, *nodes, self.events)

    def key(self, key: str) -> str:
        return f"{self.keys}/{hashlib.sha256(key.encode()).hexdigest()}"

    def job(self, name: str) -> str:
        return f"{self.jobs}/{check_name('job', name)}"

    def manifest(self, job: str) -> str:
        return f"{self.job(job)}/manifest"

    def wanted(self, job: str) -> str:
        return f"{self.job(job)}/wanted"

    def life(self, job: str) -> str:
        return f"{self.job(job)}/life"

    def secret(self, job: str) -> str:
        return f"{self.job(job)}/secret"

    def user_secret(self, name: str) -> str:
        return f"{self.secrets}/{check_name('secret', name)}"

    def queue(self, name: str) -> str:
        return f"{self.queues}/{check_name('queue', name)}"

    def tenant(self, name: str) -> str:
        return f"{self.tenants}/{check_name('tenant', name)}"

    def inbox(self, tenant: str) -> str:
        return f"{self.tenant(tenant)}/inbox"

    def responses(self, tenant: str) -> str:
        return f"{self.tenant(tenant)}/responses"

    def tenant_jobs(self, tenant: str) -> str:
        return f"{self.tenant(tenant)}/jobs"

    def tenant_job(self, tenant: str, job: str) -> str:
        return f"{self.tenant_jobs(tenant)}/{check_name('job', job)}"

    def tenant_view(self, tenant: str) -> str:
        return f"{self.tenant(tenant)}/view"

    def measured(self, job: str) -> str:
        return f"{self.job(job)}/measured"

    def host(self, name: str) -> str:
        return f"{self.hosts}/{check_name('host', name)}"

    def offer(self, host: str) -> str:
        return f"{self.host(host)}/offer"

    def drained(self, host: str) -> str:
        return f"{self.host(host)}/drained"

    def assigned(self, host: str) -> str:
        return f"{self.host(host)}/assigned"

    def report(self, host: str) -> str:
        return f"{self.host(host)}/report"

    def event(self, number: int) -> str:
        return f"{self.events}/e-{number:010d}"


class ClusterNodes(Nodes[ClusterPaths]):
    """Access to the nodes of one cluster through one session; get one from `open_cluster`."""

    def __init__(self, session: Session, paths: ClusterPaths) -> None:
        super().__init__(session, paths, f"cluster {paths.name}")

    def unknown(self) -> UnknownCluster:
        return UnknownCluster(self.paths.name, cluster_names(self.session))

    def uid(self) -> str:
        found = self.read(exists(self.paths.root))[0]
        if found is None:
            raise self.unknown()
        return f"{found.czxid:x}-{found.ctime}"

    @property
    def access(self) -> Access:
        access = self.session.access
        assert access is not None
        return access

    def names(self, path: str) -> list[str]:
        """Return the names of the children of a node that every cluster has, in any order."""
        names: list[str] | None = self.read(children(path))[0]
        if names is None:
            raise self.unknown()
        return names

    def records(
        self, kind: type[R], paths: Mapping[str, str], wake: OnChange = None
    ) -> dict[str, R]:
        """Return the records of those nodes that exist, by the keys of `paths`."""
        answers = self.read(*(get(path, wake) for path in paths.values())) if paths else []
        return {
            name: record(kind, (path, answer[0]))
            for (name, path), answer in zip(paths.items(), answers, strict=True)
            if answer is not None
        }

    def unknown_job(self, job: str) -> UnknownJob:
        """Return the error for a job that this cluster does not have; its text names its jobs."""
        return UnknownJob(job, tuple(sorted(self.names(self.paths.jobs))), "edl submit")

    def check_administrator(self, action: str) -> None:
        """Raise a UsageError if the session is a tenant's, who may not do `action`, a verb."""

    def check_session(self) -> None:
        access = self.session.access
        if access is None or access.job != self.paths.name:
            raise CoordinationError(
                f"{self.what} can only be written in a session of its own secret: this one has "
                f"that of {'nothing' if access is None else access.job}"
            )


def cluster_names(session: Session) -> tuple[str, ...]:
    names = session.read_all("list clusters", [children(CLUSTERS)])[0] or ()
    return tuple(sorted(name for name in names if is_name(name)))


def create_cluster(session: Session, access: Access, record: ClusterRecord) -> bool:
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


# ------------------------------------------------------------
# Refuse a cluster whose records have a format that this edl does not read and write.
#
# The node of the cluster names the format, and the version of edl that has written it. A controller
# of another format does not lead, a host of another one starts and ends nothing, and a client of
# another one changes nothing: so none of them can harm what the others have written.


def own_version() -> str:
    return metadata.version("edl-horovod")


def check_format(nodes: ClusterNodes, wake: OnChange = None) -> None:
    path = nodes.paths.cluster
    answer = nodes.read(get(path, wake))[0]
    if answer is None:
        raise nodes.unknown()
    check_settings(nodes.paths.name, record(ClusterRecord, (path, answer[0])))


def check_settings(cluster: str, settings: ClusterRecord) -> None:
    if settings.format == FORMAT:
        return
    by = f", which edl {settings.version} writes" if settings.version else ""
    what = f"edl {settings.version}" if settings.version else "the version of edl that runs there"
    raise UnsupportedFormat(
        f"cluster {cluster} has records of format {settings.format}{by}, and this edl "
        f"{own_version()} reads and writes format {FORMAT}; install {what}"
    )
