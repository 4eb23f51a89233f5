"""Carry out what the tenants of a cluster ask for, and tell them of their jobs (docs/adr/0027).

The leading controller does so, once a turn. What a tenant may ask is decided by
:mod:`edl.cluster.tenants`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from edl.cluster.lifecycle import ClusterEventKind, JobLifecycle, LifeState
from edl.cluster.manifest import JobManifest
from edl.cluster.nodes import ClusterNodes
from edl.cluster.plan import ClusterPlan
from edl.cluster.records import Wanted
from edl.cluster.store import ClusterStore
from edl.cluster.submission import submit_job
from edl.cluster.tenants import (
    MAX_A_MINUTE,
    MAX_JOBS,
    MAX_REQUEST_BYTES,
    MINUTE_S,
    RequestRate,
    TenantRecord,
    TenantRequest,
    TenantResponses,
    TenantVerb,
    TenantView,
    misshapen,
    own_manifest,
    refusal,
    request_number,
    shown,
    views,
)
from edl.cluster.view import HostView
from edl.cluster.writer import (
    ClusterWriter,
    RequestLost,
    RequestNodes,
    cut_reasons,
    event_write,
    fitting_write,
)
from edl.errors import CoordinationError, LeadershipLost, UnknownJob, UsageError
from edl.zookeeper.election import Write
from edl.zookeeper.nodes import content
from edl.zookeeper.reads import children, decode, exists, get

logger = logging.getLogger(__name__)
AT_ONCE = 20  # requests of one tenant in one turn: the others, and the plan, come next
ATTEMPTS, AGAIN_S = 3, 1.0  # of a request that fails though ZooKeeper answers; the time between
EVERY_S = 1.0  # the shortest time between two writes of what a tenant is told
REFUSALS_LOGGED = 100  # of one tenant in one term: a tenant must not push others' events out


class TenantRequests:
    """The tenants' requests during one term of the leader; call `serve` once a turn."""

    def __init__(
        self, store: ClusterStore, writer: ClusterWriter, wake: Callable[[], None]
    ) -> None:
        self._store = store
        self._writer = writer
        self._wake = wake
        self._nodes = store.nodes
        self._paths = store.paths
        self._tenants = store.tenants
        self._stuck: set[str] = set()  # requests that can be neither read nor removed
        self._rates: dict[str, RequestRate] = {}
        self._failures: Counter[str] = Counter()  # of requests that are tried again
        self._refusals: Counter[str] = Counter()
        self._told: dict[str, tuple[float, TenantView]] = {}

    def serve(
        self,
        hosts: Sequence[HostView],
        planned: ClusterPlan,
        lives: Mapping[str, JobLifecycle],
        now_s: float,
    ) -> float:
        tenants = self._tenants.records(self._wake)
        if not tenants:
            return float("inf")
        left_s = min(self._serve(name, about, now_s) for name, about in tenants.items())
        return min(left_s, self._tell(tenants, hosts, planned, lives, now_s))

    # --- requests

    def _serve(self, tenant: str, record: TenantRecord, now_s: float) -> float:
        inbox = self._nodes.read(children(self._paths.inbox(tenant), self._wake))[0] or ()
        waiting = sorted(set(inbox), key=lambda node: (request_number(node) or 0, node))
        waiting = [node for node in waiting if f"{tenant}/{node}" not in self._stuck]
        self._rates[tenant] = self._rates.get(tenant, RequestRate()).at(now_s)
        for node in waiting[:AT_ONCE]:
            rate = self._rates[tenant]
            if rate.count >= MAX_A_MINUTE:
                if not rate.is_logged:  # once a minute
                    reason = (
                        f"tenant {tenant} has asked for {MAX_A_MINUTE} changes within a minute, "
                        "which is the most; its other requests wait for the next minute"
                    )
                    self._writer.commit([self._event(tenant, reason)])
                    self._rates[tenant] = replace(rate, is_logged=True)
                return max(0.0, rate.began_s + MINUTE_S - now_s)
            self._take_or_drop(tenant, record, node)
        if len(waiting) > AT_ONCE:
            return 0.0
        is_tried = any(f"{tenant}/{node}" in self._failures for node in waiting)
        return AGAIN_S if is_tried else float("inf")

    def _take_or_drop(self, tenant: str, record: TenantRecord, node: str) -> None:
        """Carry out one request; remove it from the inbox if that fails for a reason of its own."""
        entry = f"{tenant}/{node}"
        try:
            self._take(tenant, record, node)
        except LeadershipLost:
            raise
        except RequestLost:
            self._stuck.add(entry)
        except CoordinationError as error:
            self._check_answers()
            self._failures[entry] += 1
            if self._failures[entry] < ATTEMPTS:
                return
            self._drop_surely(tenant, node, f"it failed {ATTEMPTS} times: {error}")
        except Exception as error:  # whatever the tenant has written: the turn goes on
            logger.exception("a request of tenant %s has failed", tenant)
            self._drop_surely(tenant, node, f"it cannot be carried out ({type(error).__name__})")
        self._failures.pop(entry, None)

    def _drop_surely(self, tenant: str, node: str, reason: str) -> None:
        try:
            self._drop(tenant, node, reason)
        except LeadershipLost:
            raise
        except Exception:
            logger.exception("a request of tenant %s cannot be removed", tenant)
            self._stuck.add(f"{tenant}/{node}")

    def _take(self, tenant: str, about: TenantRecord, node: str) -> None:
        key = self._tenants.key(tenant, about)
        if key is None:
            self._drop(tenant, node, "its record is of another secret; make the tenant anew")
            return
        p, is_request = self._paths, request_number(node) is not None
        request = self._request(f"{p.inbox(tenant)}/{node}") if is_request else None
        if request is None:
            self._drop(tenant, node, "what it wrote into its inbox is no request")
            return
        kept = self._nodes.read(get(p.responses(tenant)))[0]
        if kept is None:  # the tenant was removed just now
            return
        responses = TenantResponses.from_json(content(p.responses(tenant), kept))
        refused = misshapen(request) or refusal(tenant, request, responses, key)
        is_known = responses.of(request.id) is not None
        if misshapen(request) or not request.is_signed(key, tenant) or is_known:
            self._drop(tenant, node, refused)
            return
        rate = self._rates[tenant]
        self._rates[tenant] = replace(rate, count=rate.count + 1)

        def answer(job: str, reason: str = "") -> list[Write]:
            after = responses.with_response(request.id, shown(reason), job).to_json()
            return [
                Write(f"{p.inbox(tenant)}/{node}", {}, delete=True),
                Write(p.responses(tenant), after, kept[1].version),
            ]

        refused = refused or self._carry_out(tenant, about, request, answer)
        if refused:
            writes = [*answer(request.job, refused), *self._refusal_event(tenant, refused)]
            if not self._writer.commit(writes):
                self._stuck.add(f"{tenant}/{node}")  # something of the tenant's is below it

    def _request(self, path: str) -> TenantRequest | None:
        """Return the request at the node `path`; None: there is none, or something else."""
        data = self._nodes.session.read_open("read a request", [get(path)])[0]
        if data is None or len(data[0]) > MAX_REQUEST_BYTES:
            return None
        try:
            return TenantRequest.from_json(decode(path, data[0], MAX_REQUEST_BYTES))
        except CoordinationError:
            return None

    def _carry_out(
        self,
        tenant: str,
        record: TenantRecord,
        request: TenantRequest,
        answer: Callable[[str], list[Write]],
    ) -> str:
        """Do what a tenant asks for and may, and answer it; return why it was refused, or ""."""
        try:
            job, change = self._change(tenant, record, request)
            # As a client of the administrator would; the event says for whom. The change, the
            # answer and the removal of the request are one transaction, which the term fences.
            nodes = RequestNodes(self._nodes, self._writer, answer(job))
            change(self._store_of(tenant, nodes))
        except UnknownJob:  # the message would name others' jobs
            return f"tenant {tenant} has no job {request.job}"
        except UsageError as error:
            return str(error)
        if not nodes.is_answered and not self._writer.commit(answer(job)):  # it was so already
            raise RequestLost(f"the request {request.id} of tenant {tenant}")
        return ""

    def _change(
        self, tenant: str, record: TenantRecord, request: TenantRequest
    ) -> tuple[str, Callable[[ClusterStore], object]]:
        if request.verb is TenantVerb.SUBMIT:
            manifest = self._manifest(tenant, request)
            key = f"tenant {tenant} {request.key or request.id}"
            owner = self._tenants.owner(tenant, record)
            return manifest.name, lambda store: submit_job(store, manifest, key, owner)
        if request.verb is TenantVerb.DELETE:
            return request.job, lambda store: store.jobs.delete(request.job, request.submitted_s)

        def wanted(before: Wanted) -> Wanted:
            goal = before.goal if request.goal is None else request.goal
            priority = before.priority if request.priority is None else request.priority
            return replace(before, goal=goal, priority=priority)

        return request.job, lambda store: store.jobs.change_wanted(request.job, wanted)

    def _manifest(self, tenant: str, request: TenantRequest) -> JobManifest:
        try:
            given = JobManifest.from_json(request.manifest)
        except CoordinationError as error:
            raise UsageError(f"this is no manifest: {error}") from error
        manifest = own_manifest(tenant, given, self._store.queues.records())
        known = self._store.secrets.names()
        if missing := [name for name in manifest.secrets if name not in known]:
            raise UsageError(
                f"tenant {tenant} has no secret {missing[0]!r}; the administrator does "
                f"`edl secret set {missing[0]}`"
            )
        jobs = self._nodes.read(exists(self._paths.tenant_jobs(tenant)))[0]
        if jobs is not None and jobs.numChildren >= MAX_JOBS:
            raise UsageError(
                f"tenant {tenant} has {jobs.numChildren} jobs, and may have {MAX_JOBS}; remove "
                "some that have ended with `edl delete`"
            )
        return manifest

    def _drop(self, tenant: str, node: str, reason: str) -> None:
        path = f"{self._paths.inbox(tenant)}/{node}"
        writes = [Write(path, {}, delete=True), *self._refusal_event(tenant, reason)]
        if not self._writer.commit(writes):
            self._stuck.add(f"{tenant}/{node}")

    def _refusal_event(self, tenant: str, why: str) -> list[Write]:
        self._refusals[tenant] += 1
        if self._refusals[tenant] > REFUSALS_LOGGED:
            return []
        return [self._event(tenant, shown(f"a request of tenant {tenant} was refused: {why}"))]

    def _event(self, tenant: str, reason: str) -> Write:
        events = self._store_of(tenant, self._nodes).events
        return event_write(self._paths, events.new(ClusterEventKind.TENANT, reason))

    def _store_of(self, tenant: str, nodes: ClusterNodes) -> ClusterStore:
        """Return a store whose events say that `tenant` has asked, at the time of the leader."""
        found = ClusterStore(nodes, by=f"tenant {tenant}")
        found.events.clock = self._store.events.clock
        return found

    # --- what tenants are told

    def _tell(
        self,
        tenants: Mapping[str, Any],
        hosts: Sequence[HostView],
        planned: ClusterPlan,
        lives: Mapping[str, JobLifecycle],
        now_s: float,
    ) -> float:
        """Write what each tenant is told, if it has changed; return when to call this again."""
        living = [job for job, life in lives.items() if life.state is not LifeState.ENDED]
        offers = {host.name: host.offer for host in hosts if host.offer is not None}
        places = {name: (one.address, one.port) for name, one in offers.items() if one.port}
        left_s, reasons = float("inf"), cut_reasons(planned.reasons)
        for tenant, view in views(living, tenants, reasons, planned.surplus, now_s).items():
            at_s, told = self._told.get(tenant, (0.0, TenantView()))
            view = replace(view, hosts=places)
            newest_s = max((lives[job].since_s for job in view.reasons), default=0.0)
            if replace(view, at_s=told.at_s) == told and newest_s <= told.at_s:
                continue
            if 0.0 <= now_s - at_s < EVERY_S:
                left_s = min(left_s, at_s + EVERY_S - now_s)
                continue
            path = self._paths.tenant_view(tenant)
            write = partial(_view_write, path, view)
            try:
                self._writer.commit([fitting_write(write, view.reasons)])
                told = view
            except LeadershipLost:
                raise
            except CoordinationError:
                self._check_answers()
                logger.exception("what tenant %s is to be told cannot be written", tenant)
            self._told[tenant] = now_s, told
        return left_s

    def _check_answers(self) -> None:
        self._nodes.read(exists(self._paths.cluster))


def _view_write(path: str, view: TenantView, reasons: Mapping[str, str]) -> Write:
    return Write(path, replace(view, reasons=reasons).to_json())
