"""Submit jobs to a cluster with :func:`submit_job`; a submission is one transaction with a key.

The key makes a submission safe to repeat: a client that got no answer, or a script that runs twice,
submits again with the same key and gets the same job. The key is known as long as the job's records
are kept.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from kazoo.client import TransactionRequest
from kazoo.exceptions import NodeExistsError

from edl.cluster.lifecycle import ClusterEvent, ClusterEventKind, JobLifecycle, LifeState
from edl.cluster.manifest import JobManifest, checked_manifest
from edl.cluster.nodes import ClusterNodes, ClusterPaths, cluster_names
from edl.cluster.queues import unknown_queue
from edl.cluster.records import (
    SEPARATOR,
    Goal,
    HostOffer,
    JobReasons,
    Wanted,
    is_tenant_name,
    own_name,
)
from edl.cluster.store import (
    ClusterEvents,
    ClusterHosts,
    ClusterJobs,
    ClusterLeader,
    ClusterStore,
    JobOwner,
    JobReader,
    check_submission,
    signing_key,
    tenant_access,
    whole_acl,
)
from edl.cluster.tenants import TenantRequest, TenantResponses, TenantVerb, TenantView
from edl.cluster.view import HostView, JobView, MeasuredThroughput
from edl.errors import AccessDenied, CoordinationError, UnknownCluster, UnknownJob, UsageError
from edl.zookeeper.access import Access, new_secret
from edl.zookeeper.events import OnUnreadable
from edl.zookeeper.nodes import ATTEMPTS, content
from edl.zookeeper.reads import children, decode, encode, exists, get
from edl.zookeeper.session import Refused, Session

MAX_JOBS = 10_000  # in one cluster, the ended ones included; ZooKeeper has all in memory
SMALL_BYTES = 4096  # of a manifest, as it is stored, that is taken in any case; most have 1,000
SHARED_BYTES = 1 << 24  # of a manifest, divided by the number of jobs: at most 110 MB for all


def submit_job(
    store: ClusterStore,
    manifest: JobManifest,
    key: str | None = None,
    owner: JobOwner | None = None,
) -> str:
    """Submit a job to a cluster, unless that was done with the same key, and return its name."""
    if key is not None and not key.strip():
        raise UsageError("the key is empty; choose a text that no other submission has")
    store.nodes.check_session()
    manifest = checked_manifest(manifest)
    key_path = store.paths.key(key if key is not None else uuid.uuid4().hex)
    answer_lost = False
    for _ in range(ATTEMPTS):
        if _is_known(store, manifest, key_path):
            return manifest.name
        try:
            _submit(store, manifest, key_path, owner)
        except Refused:
            continue  # another process has submitted or removed a job of that name: read again
        except CoordinationError:
            if answer_lost:
                raise
            answer_lost = True  # it may have been written: the key tells
            continue
        return manifest.name
    raise store.nodes.changed_too_often(store.paths.job(manifest.name))


def _is_known(store: ClusterStore, manifest: JobManifest, key_path: str) -> bool:
    answer = store.nodes.read(get(key_path))[0]
    if answer is None:
        return False
    name = str(decode(key_path, answer[0])["job"])
    path = store.paths.manifest(name)
    stored = store.nodes.read(get(path))[0]
    if stored is None:
        return False  # it was removed meanwhile, and its key with it
    if JobManifest.from_json(decode(path, stored[0])) != manifest:
        raise UsageError(
            f"job {name} was submitted with the same key and another manifest; choose another "
            "key for another submission"
        )
    return True


def _submit(
    store: ClusterStore, manifest: JobManifest, key_path: str, owner: JobOwner | None
) -> None:
    nodes, p, name = store.nodes, store.paths, manifest.name
    path = p.job(name)
    jobs, old, life = nodes.read(exists(p.jobs), get(path), get(p.life(name)))
    if jobs is None:
        raise nodes.unknown()
    # So all manifests together leave room in the memory of ZooKeeper.
    size = len(encode(manifest.to_json()))
    most = max(SMALL_BYTES, SHARED_BYTES // (jobs.numChildren + 1))
    if size > most:
        raise UsageError(
            f"the manifest of job {name} takes {size} bytes, and {nodes.what}, which has "
            f"{jobs.numChildren} jobs, takes at most {most}; shorten it, or wait until some have "
            "ended"
        )
    # An ended job of the same name is replaced.
    is_again, old_key = old is not None and life is not None, ""
    if is_again:
        old_key = f"{p.keys}/{decode(path, old[0]).get('key', '')}"
        if old_key == key_path:  # another process has submitted it since
            raise Refused(0, NodeExistsError(old_key))
        state = JobLifecycle.from_json(content(p.life(name), life)).state
        if state is not LifeState.ENDED:
            raise UsageError(
                f"{nodes.what} has a job named {name!r} already, which is {state}; choose "
                f"another name, or remove it with `edl delete {name}`"
            )
        if nodes.read(exists(old_key))[0] is None:
            old_key = ""
    elif jobs.numChildren >= MAX_JOBS:
        raise UsageError(
            f"{nodes.what} has {jobs.numChildren} jobs, and may have {MAX_JOBS}; wait "
            "until some have ended, or remove some with `edl delete`"
        )
    queue = _checked_queue(store, manifest, owner)

    def build(transaction: TransactionRequest) -> None:
        if queue:
            transaction.check(queue, -1)  # nobody has deleted it meanwhile
        transaction.create(key_path, encode({"job": name}))
        data = encode({"key": key_path.rpartition("/")[2]})
        acl = None if owner is None else owner.acl
        if is_again:
            transaction.delete(p.life(name), life[1].version)
            transaction.delete(p.wanted(name))
            transaction.delete(p.manifest(name))
            transaction.set_data(path, data)
            if old_key:
                transaction.delete(old_key)
        else:
            transaction.create(path, data, acl=acl)
            if owner is not None:
                transaction.create(p.secret(name), encode({"secret": new_secret()}), acl=acl)
                transaction.create(p.tenant_job(owner.tenant, name), b"", acl=acl)
        transaction.create(p.manifest(name), encode(manifest.to_json()), acl=acl)
        wanted = Wanted(priority=manifest.priority)
        transaction.create(p.wanted(name), encode(wanted.to_json()), acl=acl)
        transaction.create(p.life(name), b"", acl=acl)

    again = " again" if is_again else ""
    reason = f"job {name} was submitted{again}, for {manifest.allowed_sizes}"
    event = store.events.new(ClusterEventKind.SUBMITTED, reason, job=name)
    store.events.transact(f"submit job {name}", event, build)


def _checked_queue(store: ClusterStore, manifest: JobManifest, owner: JobOwner | None) -> str:
    """Check the names that the manifest uses; return the path of its queue, "" without queues."""
    nodes, p, name = store.nodes, store.paths, manifest.name
    if manifest.secrets:
        known = store.secrets.names()
        for secret in manifest.secrets:
            if secret not in known:
                asks = f", for which job {name} asks"
                raise UsageError(store.secrets.unknown(secret, known, asks))
    queues = store.queues.records()
    if queues and manifest.queue not in queues:
        asks = f", which job {name} names"
        raise UsageError(unknown_queue(nodes.what, manifest.queue, queues, asks))
    tenant, dot, _ = name.partition(SEPARATOR)
    if owner is None and dot and is_tenant_name(tenant):
        is_tenants = nodes.read(exists(p.tenant(tenant)))[0] is not None
        if is_tenants:
            raise UsageError(
                f"a job named {name!r} belongs to tenant {tenant}; submit it with the secret "
                "of the tenant, or choose another name"
            )
    return p.queue(manifest.queue) if queues else ""


# ------------------------------------------------------------
# Read the jobs of one tenant of a cluster, and ask the leader to change them (docs/adr/0027).
#
# A `TenantStore` is what a `ClusterStore` is for the administrator, as far as a tenant may: it
# reads the nodes of its own jobs, and writes requests into its inbox.


ANSWER_S = 10.0  # that a request waits for the leader's answer
POLL_S = 0.05  # between two polls for the answer


class TenantNodes(ClusterNodes):
    """Access to the nodes of a cluster for a tenant, who writes into its inbox only."""

    def __init__(self, session: Session, paths: ClusterPaths, tenant: str) -> None:
        super().__init__(session, paths)
        self.tenant = tenant

    def view(self) -> TenantView:
        path = self.paths.tenant_view(self.tenant)
        return TenantView.from_json(content(path, self.read(get(path))[0]))

    def check_administrator(self, action: str) -> None:
        raise UsageError(
            f"tenant {self.tenant} may not {action}; that needs the secret of the cluster, which "
            "its administrator has"
        )

    def check_session(self) -> None:
        raise UsageError(
            f"tenant {self.tenant} may not do this; it needs the secret of {self.what}, which its "
            "administrator has"
        )


class TenantJobs(ClusterJobs):
    """The jobs of one tenant of a cluster, which the leader changes when the tenant asks for it."""

    def __init__(
        self, nodes: TenantNodes, events: ClusterEvents, reader: JobReader, access: Access
    ) -> None:
        super().__init__(nodes, events, reader)
        self._tenant = nodes.tenant
        self._access = access

    # --- reading

    def list(self) -> tuple[JobView, ...]:
        return self._reader.read(self._names())

    def get(self, name: str) -> JobView:
        """Read the tenant's job called `name`, with or without the name of the tenant before it."""
        full, names = self.full_name(name), self._names()
        found = self._reader.read([full]) if full in names else ()
        if not found:
            raise UnknownJob(full, tuple(sorted(names)), "edl submit")
        return found[0]

    def has(self, name: str) -> bool:
        return self.full_name(name) in self._names()

    def full_name(self, job: str) -> str:
        return own_name(self._tenant, job)

    def log_access(self, job: str) -> Access:
        name = self.full_name(job)
        return Access(name, self.secret(name) or "")

    def secret(self, job: str) -> str | None:
        return super().secret(self.full_name(job))

    def secrets_and_measured(
        self, jobs: Iterable[str], watch: bool = True
    ) -> tuple[dict[str, str], dict[str, MeasuredThroughput]]:
        """Return the secrets of the runs of `jobs`; what former runs measured is not told."""
        secrets = {job: self.secret(job) for job in jobs}
        return {job: secret for job, secret in secrets.items() if secret}, {}

    def _names(self) -> Sequence[str]:
        return self._nodes.read(children(self._paths.tenant_jobs(self._tenant)))[0] or ()

    # --- asking

    def submit(self, manifest: JobManifest, key: str | None = None) -> str:
        if key is not None and not key.strip():
            raise UsageError("the key is empty; choose a text that no other submission has")
        asked = checked_manifest(manifest).to_json()
        request = TenantRequest(uuid.uuid4().hex, TenantVerb.SUBMIT, manifest=asked, key=key or "")
        return self._ask(request)

    def change_wanted(self, job: str, change: Callable[[Wanted], Wanted]) -> Wanted:
        stored = self.get(job)
        before, after = stored.wanted, change(stored.wanted)
        request = TenantRequest(
            uuid.uuid4().hex,
            TenantVerb.WANT,
            job=stored.name,
            goal=after.goal if after.goal is not before.goal else None,
            priority=after.priority if after.priority != before.priority else None,
        )
        if request.goal is not None or request.priority is not None:
            self._ask(request)
        return self.get(stored.name).wanted

    def delete(self, job: str, submitted_s: float | None = None) -> Wanted:
        stored = self.get(job)
        if submitted_s is not None:
            check_submission(stored, submitted_s)
            if stored.wanted.goal is Goal.GONE:
                return stored.wanted
        request = TenantRequest(
            uuid.uuid4().hex, TenantVerb.DELETE, job=stored.name, submitted_s=submitted_s
        )
        self._ask(request)
        try:
            return self.get(stored.name).wanted
        except UnknownJob:  # its records are gone
            return Wanted(Goal.GONE, stored.wanted.priority, removed=True)

    def _ask(self, request: TenantRequest) -> str:
        """Ask the leader through the inbox, and wait for its answer; return the job's name."""
        p, session = self._paths, self._nodes.session
        cluster, tenant = p.name, self._tenant
        inbox, before = self._nodes.read(get(p.inbox(tenant)), get(p.responses(tenant)))
        after = TenantResponses.from_json(content(p.responses(tenant), before)).newest
        key = signing_key(cluster, tenant, self._access.secret)
        signed = replace(request, after=after).signed(key, tenant)
        identity = str(content(p.inbox(tenant), inbox)["identity"])
        acl, data = whole_acl(identity), encode(signed.to_json())
        session.call(
            "ask the leader",
            lambda c: c.create_async(f"{p.inbox(tenant)}/r-", data, acl=acl, sequence=True),
        )
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline:
            answer = self._nodes.read(get(p.responses(tenant)))[0]
            found = TenantResponses.from_json(content(p.responses(tenant), answer)).of(request.id)
            if found is not None and found.refused:
                raise UsageError(found.refused)
            if found is not None:
                return found.job
            time.sleep(POLL_S)
        raise CoordinationError(
            f"no controller of cluster {cluster} has answered for {ANSWER_S:g} s; the request is "
            "in ZooKeeper, and will be carried out when one leads"
        )


class TenantHosts(ClusterHosts):
    _nodes: TenantNodes

    def list(self) -> tuple[HostView, ...]:
        return tuple(
            HostView(name, HostOffer(0, address=address, port=port))
            for name, (address, port) in sorted(self._nodes.view().hosts.items())
        )


class TenantLeader(ClusterLeader):
    _nodes: TenantNodes

    def reasons(self) -> JobReasons:
        view = self._nodes.view()
        return JobReasons(view.at_s, view.reasons, view.surplus)


class TenantEvents(ClusterEvents):
    """The event log of a cluster for a tenant, who cannot read it: there are no events."""

    def _read(self, after: int, unreadable: OnUnreadable | None) -> list[tuple[int, ClusterEvent]]:
        return []


class TenantStore(ClusterStore):
    """The jobs of a tenant of a cluster, read as records, and changed by requests."""

    jobs: TenantJobs
    nodes: TenantNodes

    def __init__(self, nodes: TenantNodes, access: Access) -> None:
        super().__init__(nodes)
        self.events = TenantEvents(nodes, by=f"tenant {nodes.tenant}")
        self.jobs = TenantJobs(nodes, self.events, self._reader, access)
        self.hosts = TenantHosts(nodes, self.events)
        self.leader = TenantLeader(nodes)


def open_tenant_store(
    session: Session, cluster: str | None, tenant: str, secret: str
) -> TenantStore:
    names = cluster_names(session)
    if cluster is not None and cluster not in names:
        raise UnknownCluster(cluster, names)
    candidates = {name: tenant_access(name, tenant, secret) for name in names}
    candidates = {n: one for n, one in candidates.items() if cluster in (None, n)}
    session.identify(*candidates.values())
    paths = {name: ClusterPaths(name) for name in candidates}
    reads = [get(paths[name].responses(tenant)) for name in candidates]
    answers = zip(candidates, session.read_open("open a cluster", reads), strict=True)
    found = [name for name, answer in answers if answer is not None]
    if len(found) == 1:
        access = candidates[found[0]]
        session.identify(access)
        return TenantStore(TenantNodes(session, paths[found[0]], tenant), access)
    if cluster is not None:
        raise AccessDenied(
            cluster,
            f"cluster {cluster} has no tenant {tenant} with this secret; ask its administrator",
        )
    raise UsageError(
        f"{len(found) or 'no'} clusters have a tenant {tenant} with this secret; name one with "
        "--cluster"
    )
