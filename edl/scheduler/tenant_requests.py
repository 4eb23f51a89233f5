"""Carry out what the tenants of a cluster ask for, and tell them of their jobs (docs/adr/0027).

The leading controller does so, once a turn. What a tenant may ask is decided by
:mod:`edl.core.cluster.tenants`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from edl.coordination.cluster_secrets import ClusterSecrets
from edl.coordination.cluster_store import ClusterStore
from edl.coordination.cluster_submission import submit_job
from edl.coordination.cluster_tenants import ClusterTenants
from edl.coordination.cluster_writer import ClusterWriter, event_write
from edl.coordination.election import Write
from edl.coordination.nodes import content
from edl.coordination.paths import sequence
from edl.coordination.reads import children, exists, get
from edl.coordination.wire import decode
from edl.core.cluster.events import ClusterEventKind
from edl.core.cluster.job_life import JobLife, LifeState
from edl.core.cluster.manifest import JobManifest
from edl.core.cluster.plan import ClusterPlan
from edl.core.cluster.tenants import (
    MOST_JOBS,
    TenantRecord,
    TenantRequest,
    TenantResponse,
    TenantResponses,
    TenantVerb,
    TenantView,
    own_manifest,
    refusal,
    views,
)
from edl.core.cluster.view import HostView
from edl.errors import CoordinationError, UnknownJob, UsageError

AT_ONCE = 20  # requests of one tenant in one turn: the others, and the plan, come next
EVERY_S = 1.0  # the shortest time between two writes of what a tenant is told
REFUSALS_LOGGED = 100  # of one tenant in one term: a tenant must not push others' events out


class TenantRequests:
    """The tenants' requests during one term of the leader; call :meth:`serve` once a turn.

    Args:
        store: The records of the cluster, in a session that has proved its secret.
        writer: Writes the records of the cluster in this term.
        wake: Called when a tenant asks for something.
    """

    def __init__(
        self, store: ClusterStore, writer: ClusterWriter, wake: Callable[[], None]
    ) -> None:
        self._store = store
        self._writer = writer
        self._wake = wake
        self._nodes = store.nodes
        self._paths = store.paths
        self._tenants = ClusterTenants(store)
        self._stuck: set[str] = set()  # requests that can be neither read nor removed
        self._refusals: Counter[str] = Counter()
        self._told: dict[str, tuple[float, TenantView]] = {}

    def serve(
        self,
        hosts: Sequence[HostView],
        found: ClusterPlan,
        lives: Mapping[str, JobLife],
        now_s: float,
    ) -> float:
        """Carry out requests, and tell each tenant why its jobs have what they have.

        Args:
            hosts: the hosts of the cluster.
            found: the plan, with the reasons.
            lives: job -> its record.
            now_s: when the plan was made, in seconds since 1970.

        Returns:
            In how many seconds to call this again; infinite if there is nothing left to do.

        Raises:
            LeadershipLost: the term is over.
            CoordinationError: ZooKeeper is away.
        """
        tenants = self._tenants.records(self._wake)
        if not tenants:
            return float("inf")
        is_left = False
        for name, about in tenants.items():
            requests = self._nodes.read(children(self._paths.inbox(name), self._wake))[0] or ()
            waiting = sorted(set(requests), key=sequence)
            waiting = [one for one in waiting if f"{name}/{one}" not in self._stuck]
            for request in waiting[:AT_ONCE]:
                self._take(name, about, request)
            is_left = is_left or len(waiting) > AT_ONCE
        tell_s = self._tell(tenants, hosts, found, lives, now_s)
        return 0.0 if is_left else tell_s

    # --- requests

    def _take(self, tenant: str, about: TenantRecord, node: str) -> None:
        """Carry out one request, answer it and remove it; one that is no request is removed.

        Args:
            tenant: the name of the tenant.
            about: its record.
            node: the name of the request's node in the inbox.
        """
        path, p = f"{self._paths.inbox(tenant)}/{node}", self._paths
        data = self._nodes.session.read_open("read a request", [get(path)])[0]
        key = self._tenants.key(tenant, about)
        if key is None:
            self._drop(tenant, node, "its record is of another secret; make the tenant anew")
            return
        try:
            request = TenantRequest.from_json(decode(path, data[0]) if data else {})
        except CoordinationError:
            self._drop(tenant, node, "what it wrote into its inbox is no request")
            return
        kept = self._nodes.read(get(p.responses(tenant)))[0]
        responses = TenantResponses.from_json(content(p.responses(tenant), kept))
        if not request.is_signed(key, tenant) or responses.of(request.id) is not None:
            self._drop(tenant, node, refusal(tenant, request, responses, key))
            return
        job, refused = request.job, refusal(tenant, request, responses, key)
        if not refused:
            job, refused = self._carry_out(tenant, about, request)
        response = TenantResponse(sequence(node), request.id, refused, job)
        after = responses.with_response(response)
        writes = [
            Write(p.responses(tenant), after.to_json(), kept[1].version),
            Write(path, {}, delete=True),
            *(self._refusal_event(tenant, refused) if refused else ()),
        ]
        if not self._writer.commit(writes):
            self._stuck.add(f"{tenant}/{node}")  # something of the tenant's is below it

    def _carry_out(
        self, tenant: str, about: TenantRecord, request: TenantRequest
    ) -> tuple[str, str]:
        """Do what a tenant asks for and may; return the name of the job, and why it was refused.

        It is done as a client of the administrator would; the event says for whom.
        """
        store = ClusterStore(self._nodes, by=f"tenant {tenant}")
        try:
            if request.verb is TenantVerb.SUBMIT:
                return self._submit(store, tenant, about, request), ""
            if request.verb is TenantVerb.DELETE:
                store.delete_job(request.job)
                return request.job, ""
            store.change_wanted(
                request.job,
                lambda before: replace(
                    before,
                    goal=before.goal if request.goal is None else request.goal,
                    priority=before.priority if request.priority is None else request.priority,
                ),
            )
        except UnknownJob:  # the message would name others' jobs
            return request.job, f"tenant {tenant} has no job {request.job}"
        except UsageError as error:
            return request.job, str(error)
        return request.job, ""

    def _submit(
        self, store: ClusterStore, tenant: str, about: TenantRecord, request: TenantRequest
    ) -> str:
        """Submit a job of a tenant, and return its name.

        Raises:
            UsageError: the job is refused.
        """
        try:
            given = JobManifest.from_json(request.manifest)
        except CoordinationError as error:
            raise UsageError(f"this is no manifest: {error}") from error
        manifest = own_manifest(tenant, given, store.queues())
        known = ClusterSecrets(store).names()
        if missing := [name for name in manifest.secrets if name not in known]:
            raise UsageError(
                f"tenant {tenant} has no secret {missing[0]!r}; the administrator does "
                f"`edl secret set {missing[0]}`"
            )
        jobs = self._nodes.read(exists(self._paths.tenant_jobs(tenant)))[0]
        if jobs is not None and jobs.numChildren >= MOST_JOBS:
            raise UsageError(
                f"tenant {tenant} has {jobs.numChildren} jobs, and may have {MOST_JOBS}; remove "
                "some that have ended with `edl delete`"
            )
        key = f"tenant {tenant} {request.key or request.id}"
        return submit_job(store, manifest, key, self._tenants.owner(tenant, about))

    def _drop(self, tenant: str, node: str, why: str) -> None:
        """Remove from the inbox what is not answered, and log why."""
        path = f"{self._paths.inbox(tenant)}/{node}"
        writes = [Write(path, {}, delete=True), *self._refusal_event(tenant, why)]
        if not self._writer.commit(writes):
            self._stuck.add(f"{tenant}/{node}")

    def _refusal_event(self, tenant: str, why: str) -> list[Write]:
        """Return the write of the event that a request was refused; none if there were many."""
        self._refusals[tenant] += 1
        if self._refusals[tenant] > REFUSALS_LOGGED:
            return []
        store = ClusterStore(self._nodes, by=f"tenant {tenant}")
        reason = f"a request of tenant {tenant} was refused: {why}"
        return [event_write(self._paths, store.event(ClusterEventKind.TENANT, reason))]

    # --- what tenants are told

    def _tell(
        self,
        tenants: Mapping[str, Any],
        hosts: Sequence[HostView],
        found: ClusterPlan,
        lives: Mapping[str, JobLife],
        now_s: float,
    ) -> float:
        """Write what each tenant is told, if it has changed; return when to call this again."""
        living = [job for job, life in lives.items() if life.state is not LifeState.ENDED]
        offers = {host.name: host.offer for host in hosts if host.offer is not None}
        places = {name: (one.address, one.port) for name, one in offers.items() if one.port}
        left_s = float("inf")
        for tenant, view in views(living, tenants, found.reasons, found.surplus, now_s).items():
            at_s, told = self._told.get(tenant, (0.0, TenantView()))
            view = replace(view, hosts=places)
            newest_s = max((lives[job].since_s for job in view.reasons), default=0.0)
            if replace(view, at_s=told.at_s) == told and newest_s <= told.at_s:
                continue
            if 0.0 <= now_s - at_s < EVERY_S:
                left_s = min(left_s, at_s + EVERY_S - now_s)
                continue
            self._writer.commit([Write(self._paths.tenant_view(tenant), view.to_json())])
            self._told[tenant] = now_s, view
        return left_s
