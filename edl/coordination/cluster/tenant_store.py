"""Read the jobs of one tenant of a cluster, and ask the leader to change them (docs/adr/0027).

A :class:`TenantStore` is what a :class:`ClusterStore` is for the administrator, as far as a tenant
may: it reads the nodes of its own jobs, and writes requests into its inbox.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from edl.coordination.access import Access
from edl.coordination.cluster.events import ClusterEvents
from edl.coordination.cluster.hosts import ClusterHosts
from edl.coordination.cluster.job_reader import JobReader, StoredJob
from edl.coordination.cluster.jobs import ClusterJobs, check_submission
from edl.coordination.cluster.leader import ClusterLeader
from edl.coordination.cluster.nodes import ClusterNodes, cluster_names
from edl.coordination.cluster.paths import ClusterPaths
from edl.coordination.cluster.store import ClusterStore
from edl.coordination.cluster.tenants import signing_key, tenant_access, whole_acl
from edl.coordination.events import OnUnreadable
from edl.coordination.nodes import content
from edl.coordination.reads import children, get
from edl.coordination.session import Session
from edl.coordination.wire import encode
from edl.core.cluster.events import ClusterEvent
from edl.core.cluster.manifest import JobManifest
from edl.core.cluster.manifest_file import checked_manifest
from edl.core.cluster.measured_throughput import MeasuredThroughput
from edl.core.cluster.records import Goal, HostOffer, JobReasons, Wanted
from edl.core.cluster.tenant_names import own_name
from edl.core.cluster.tenants import (
    TenantRequest,
    TenantResponses,
    TenantVerb,
    TenantView,
)
from edl.core.cluster.view import HostView
from edl.errors import AccessDenied, CoordinationError, UnknownCluster, UnknownJob, UsageError

ANSWER_S = 10.0  # that a request waits for the leader's answer
LOOK_S = 0.05  # between two looks for the answer


class TenantNodes(ClusterNodes):
    """Access to the nodes of a cluster for a tenant, who writes into its inbox only."""

    def __init__(self, session: Session, paths: ClusterPaths, tenant: str) -> None:
        super().__init__(session, paths)
        self.tenant = tenant

    def view(self) -> TenantView:
        """Read and return what the leader tells the tenant."""
        path = self.paths.tenant_view(self.tenant)
        return TenantView.from_json(content(path, self.read(get(path))[0]))

    def check_administrator(self, what: str) -> None:
        """Raise the error that only the administrator may do `what`."""
        raise UsageError(
            f"tenant {self.tenant} may not {what}; that needs the secret of the cluster, which its "
            "administrator has"
        )

    def check_session(self) -> None:
        """Raise the error that only the administrator may do this."""
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

    def list(self) -> tuple[StoredJob, ...]:
        """Read the jobs of the tenant, and return them in the order of submission."""
        return self._reader.read(self._names())

    def get(self, name: str) -> StoredJob:
        """Read the tenant's job called `name`, with or without the name of the tenant before it."""
        full, names = self.full_name(name), self._names()
        found = self._reader.read([full]) if full in names else ()
        if not found:
            raise UnknownJob(full, tuple(sorted(names)), "edl submit")
        return found[0]

    def has(self, name: str) -> bool:
        """Return whether the tenant has a job called `name`, also an ended one."""
        return self.full_name(name) in self._names()

    def full_name(self, job: str) -> str:
        return own_name(self._tenant, job)

    def log_access(self, job: str) -> Access:
        """Return the job and its secret, which sign requests for the logs of the job."""
        name = self.full_name(job)
        return Access(name, self.secret(name) or "")

    def secret(self, job: str) -> str | None:
        """Return the secret of the runs of `job`."""
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
        """Ask the leader to submit a job, and return the full name of the job."""
        if key is not None and not key.strip():
            raise UsageError("the key is empty; choose a text that no other submission has")
        asked = checked_manifest(manifest).to_json()
        request = TenantRequest(uuid.uuid4().hex, TenantVerb.SUBMIT, manifest=asked, key=key or "")
        return self._ask(request)

    def change_wanted(self, job: str, change: Callable[[Wanted], Wanted]) -> Wanted:
        """Ask the leader to change what is wanted of `job`; return what is wanted then."""
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
        """Ask the leader to delete `job`; return what is wanted of it then."""
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
            time.sleep(LOOK_S)
        raise CoordinationError(
            f"no controller of cluster {cluster} has answered for {ANSWER_S:g} s; the request is "
            "in ZooKeeper, and will be carried out when one leads"
        )


class TenantHosts(ClusterHosts):
    """The hosts of a cluster as a tenant sees them."""

    def __init__(self, nodes: TenantNodes, events: ClusterEvents) -> None:
        super().__init__(nodes, events)
        self._view = nodes.view

    def list(self) -> tuple[HostView, ...]:
        """Return the hosts that serve logs, with nothing but their names and addresses."""
        return tuple(
            HostView(name, HostOffer(0, address=address, port=port))
            for name, (address, port) in sorted(self._view().hosts.items())
        )


class TenantLeader(ClusterLeader):
    """A reader of the reasons that the leader of a cluster gives for the jobs of one tenant."""

    def __init__(self, nodes: TenantNodes) -> None:
        super().__init__(nodes)
        self._view = nodes.view

    def reasons(self) -> JobReasons:
        """Return what the leader says of the tenant's jobs."""
        view = self._view()
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
    """Prove the secret of a tenant in `session`, and return what the tenant may read and ask."""
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
