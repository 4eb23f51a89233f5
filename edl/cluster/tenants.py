"""Decide what a tenant may ask of a cluster, and whether a request is its own and new.

A tenant is a user, or a team, who may submit, see and steer own jobs only (docs/adr/0027). Its
requests reach the leader in an inbox that only the tenant can write. The names of its jobs and
secrets begin with its own: ``ann.digits``. A request is signed with a key that is never sent.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from edl.cluster.manifest import MAX_PRIORITY, JobManifest
from edl.cluster.records import SEPARATOR, Goal, QueueRecord, own_name, tenant_of
from edl.errors import UsageError, some
from edl.record import Record

RESPONSES_KEPT = 500  # of each tenant, the newest
MAX_TENANTS = 1000  # of a cluster
MAX_JOBS = 2000  # of a tenant, those that have ended included
MAX_REQUEST_BYTES = 1 << 18  # of a request, as it is stored and as JSON
MAX_A_MINUTE = 120  # requests of a tenant: by them alone it takes an hour to fill the log
MINUTE_S = 60.0
MAX_TEXT = 500  # characters of why a request was refused, and of an event about one
_MAX_ID, _MAX_JOB = 64, 128  # characters; the job may be wrong, and is then quoted
_NUMBERED = re.compile(r"r-([0-9]{10})")  # as ZooKeeper numbers the nodes of an inbox


class TenantVerb(StrEnum):
    """What a tenant asks for: to submit a job, another goal or priority of a job, to delete one."""

    SUBMIT = "submit"
    WANT = "want"
    DELETE = "delete"


@dataclass(frozen=True)
class TenantRecord(Record):
    """The record of a tenant, which only the administrator and the controllers can read."""

    identity: str  # its digest identity in ACLs, `user:hash`
    sealed: str  # the key of its signatures, sealed with a key of the cluster, in base 64
    created_s: float = 0.0  # when it was made, in seconds since 1970
    by: str = ""  # the user and the machine that have made it
    revoked: bool = False  # the record stays while its inbox has what others cannot remove


@dataclass(frozen=True)
class TenantRequest(Record):
    """A request of a tenant, at a node of its inbox."""

    id: str  # a random text that no other request has
    verb: TenantVerb  # what is asked for
    after: int = -1  # the number of the newest response that the tenant knew; -1: it knew none
    job: str = ""  # with that of the tenant; of a submission it is in the manifest
    goal: Goal | None = None  # the new goal of the job; None: it stays
    priority: int | None = None  # the new priority of the job; None: it stays
    manifest: Mapping[str, Any] = field(default_factory=dict)  # what is submitted
    key: str = ""  # names the submission: the same key again is the same job
    submitted_s: float | None = None  # of the job to delete; None: whichever has the name
    signature: str = ""  # the HMAC-SHA256 of all of it, in hexadecimal

    def signed(self, key: str, tenant: str) -> TenantRequest:
        return replace(self, signature=self._mac(key, tenant))

    def is_signed(self, key: str, tenant: str) -> bool:
        given = self.signature.encode(errors="backslashreplace")  # JSON may have lone surrogates
        return hmac.compare_digest(given, self._mac(key, tenant).encode())

    def _mac(self, key: str, tenant: str) -> str:
        values = {**replace(self, signature="").to_json(), "tenant": tenant}
        text = json.dumps(values, sort_keys=True, separators=(",", ":"))
        return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()


@dataclass(frozen=True)
class TenantResponse(Record):
    # the number of the response. The leader counts them, so that it depends on no name of a node in
    # the inbox: whoever may create one there can choose that name.
    number: int
    id: str  # the id of the request
    refused: str = ""  # why it was not carried out, as a sentence; empty: it was
    job: str = ""  # the name of the job that it was about


@dataclass(frozen=True)
class TenantResponses(Record):
    """The leader's responses to the newest requests of a tenant, at the node `responses`."""

    responses: tuple[TenantResponse, ...] = ()  # the responses, in ascending order of their numbers
    forgotten: int = -1  # the number of the newest response that is not kept any more; -1: all are

    @property
    def newest(self) -> int:
        """The number of the newest response; -1: there was none yet."""
        return self.responses[-1].number if self.responses else self.forgotten

    def of(self, request: str) -> TenantResponse | None:
        """Return the response to the request with the id `request`; None: there is none."""
        return next((one for one in self.responses if one.id == request), None)

    def with_response(self, request: str, refused: str = "", job: str = "") -> TenantResponses:
        """Return these with one more, as the newest; without the oldest if they are too many."""
        # A request is signed before it is answered, so what its author knew then is older: once its
        # response is forgotten, `refusal` refuses it.
        found = (*self.responses, TenantResponse(self.newest + 1, request, refused, job))
        old, kept = found[:-RESPONSES_KEPT], found[-RESPONSES_KEPT:]
        return TenantResponses(kept, old[-1].number if old else self.forgotten)


@dataclass(frozen=True)
class TenantView(Record):
    """What the leader tells a tenant beside the nodes of its jobs, at the node `view`."""

    at_s: float = 0.0  # when the plan was made that the reasons are from, in seconds since 1970
    reasons: Mapping[str, str] = field(default_factory=dict)  # by job
    surplus: Mapping[str, int] = field(default_factory=dict)  # job -> slots beyond the quota
    hosts: Mapping[str, tuple[str, int]] = field(default_factory=dict)  # by host, for logs


@dataclass(frozen=True)
class RequestRate:
    """How many requests of one tenant were carried out or refused within the present minute."""

    began_s: float = 0.0  # when the minute began, in seconds since 1970
    count: int = 0  # the signed requests in it
    is_logged: bool = False  # whether it was logged that further requests wait

    def at(self, now_s: float) -> RequestRate:
        """Return the rate at the time `now_s`: a new minute begins when the last one is over."""
        return self if 0.0 <= now_s - self.began_s < MINUTE_S else RequestRate(now_s)

    @property
    def is_reached(self) -> bool:
        return self.count >= MAX_A_MINUTE


# --- decisions


def request_number(node: str) -> int | None:
    # Requests are taken in this order. Nothing else may follow from it: the author of the node may
    # have chosen it.
    found = _NUMBERED.fullmatch(node)
    return None if found is None else int(found[1])


def shown(text: str) -> str:
    """Return what is kept and logged of a text that may quote a tenant: short, printable ASCII."""
    kept = text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 3]}..."
    return "".join(one if " " <= one <= "~" else "?" for one in kept)


def misshapen(request: TenantRequest) -> str:
    """Return why a request cannot even be answered: what an answer repeats is wrong; or empty."""
    if not 0 < len(request.id) <= _MAX_ID or request.id != shown(request.id):
        return f"its id is not a text of 1 to {_MAX_ID} printable ASCII characters"
    if len(request.job) > _MAX_JOB or request.job != shown(request.job):
        return f"its job is not a text of at most {_MAX_JOB} printable ASCII characters"
    return ""


def refusal(tenant: str, request: TenantRequest, responses: TenantResponses, key: str) -> str:
    """Return why a request in the inbox of `tenant` is not carried out; empty: it is."""
    if not request.is_signed(key, tenant):
        return f"the request is not signed by tenant {tenant}"
    if responses.of(request.id) is not None:
        return "the request was answered before"
    if request.after < responses.forgotten:
        return "the request is older than the responses that are kept; ask again"
    # JSON may have lone surrogates, which have no encoding.
    is_text = not any("\ud800" <= one <= "\udfff" for one in request.key)
    if len(request.key) > MAX_TEXT or not is_text:
        return f"the key must be a text of at most {MAX_TEXT} characters"
    if request.verb is not TenantVerb.SUBMIT and own_name(tenant, request.job) != request.job:
        return f"{request.job} is no job of tenant {tenant}"
    if request.goal is Goal.GONE:
        return "to delete a job is a request of its own"
    if request.priority is not None and abs(request.priority) > MAX_PRIORITY:
        return f"the priority must lie between -{MAX_PRIORITY} and {MAX_PRIORITY}"
    return ""


def own_manifest(
    tenant: str, manifest: JobManifest, queues: Mapping[str, QueueRecord]
) -> JobManifest:
    """Return the manifest that is submitted for a tenant: names with its own, and its queue."""
    own = sorted(name for name, queue in queues.items() if queue.tenant == tenant)
    queue = manifest.queue
    # it names none
    if queue not in own and queue == JobManifest("", (), 0, 0).queue and len(own) == 1:
        queue = own[0]
    if queue not in own:
        has = f"it has {some(own)}" if own else "it has none; the administrator gives it one"
        raise UsageError(f"tenant {tenant} has no queue {queue!r}; {has}")
    for name in manifest.secrets:
        if own_name(tenant, name) != name:
            raise UsageError(
                f"tenant {tenant} has no secret {name!r}: its secrets are called "
                f"{tenant}{SEPARATOR}NAME, and the administrator sets them"
            )
    return replace(
        manifest,
        name=own_name(tenant, manifest.name),
        after=tuple(own_name(tenant, name) for name in manifest.after),
        queue=queue,
    )


def views(
    jobs: Sequence[str],
    tenants: Mapping[str, Any],
    reasons: Mapping[str, str],
    surplus: Mapping[str, int],
    now_s: float,
) -> dict[str, TenantView]:
    """Return what each tenant is told of its jobs, without the hosts."""
    own: dict[str, list[str]] = {tenant: [] for tenant in tenants}
    for job in jobs:
        if tenant := tenant_of(job, tenants):
            own[tenant].append(job)
    return {
        tenant: TenantView(
            now_s,
            {job: reasons[job] for job in names if job in reasons},
            {job: surplus[job] for job in names if job in surplus},
        )
        for tenant, names in own.items()
    }
