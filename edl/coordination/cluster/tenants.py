"""Make, list and remove the tenants of a cluster (docs/adr/0027)."""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from kazoo.client import TransactionRequest
from kazoo.exceptions import NoNodeError, NotEmptyError
from kazoo.security import ACL, Id, Permissions

from edl.coordination.access import Access
from edl.coordination.cluster.events import ClusterEvents
from edl.coordination.cluster.jobs import ClusterJobs
from edl.coordination.cluster.nodes import ClusterNodes
from edl.coordination.cluster.queues import ClusterQueues
from edl.coordination.cluster.secrets import ClusterSecrets
from edl.coordination.nodes import record
from edl.coordination.reads import OnChange, children, exists, get
from edl.coordination.secrets import new_secret
from edl.coordination.session import Refused
from edl.coordination.wire import encode
from edl.core.cluster.events import ClusterEventKind
from edl.core.cluster.job_life import LifeState
from edl.core.cluster.tenant_names import is_tenant_name, secret_word, tenant_of
from edl.core.cluster.tenants import (
    MOST_TENANTS,
    TenantRecord,
)
from edl.core.plural import counted, verb
from edl.errors import CoordinationError, UsageError, some
from edl.keys import NONCE_BYTES, derived, seal, unseal

SHOWN = "a name of a tenant has 1 to 32 letters, digits, dashes and underscores, and no dot"
PART = 500  # nodes that are removed in one transaction, which takes 1 MiB


@dataclass(frozen=True)
class JobOwner:
    """The tenant for whom the nodes of a job are made."""

    tenant: str
    acl: list[ACL]  # all rights for the cluster, and to read for the tenant


def tenant_access(cluster: str, tenant: str, secret: str) -> Access:
    """Return the ZooKeeper identity of a tenant; no job or cluster has such a name."""
    return Access(f"{cluster}/{tenant}", secret)


def signing_key(cluster: str, tenant: str, secret: str) -> str:
    """Return the key with which a tenant signs requests; it is never sent."""
    return derived(secret, "requests", f"{cluster}/{tenant}")


def readable(access: Access, identity: str, create: bool = False) -> list[ACL]:
    """Return the ACL of a node that a tenant can read."""
    rights = Permissions.READ | (Permissions.CREATE if create else 0)
    return [*access.acl, ACL(rights, Id("digest", identity))]


def whole_acl(identity: str) -> list[ACL]:
    """Return the ACL with which a tenant makes nodes for controllers, whose secret it lacks."""
    return [ACL(Permissions.ALL, Id("digest", identity))]


class ClusterTenants:
    def __init__(
        self,
        nodes: ClusterNodes,
        events: ClusterEvents,
        jobs: ClusterJobs,
        queues: ClusterQueues,
        secrets: ClusterSecrets,
    ) -> None:
        self._nodes = nodes
        self._paths = nodes.paths
        self._events = events
        self._jobs = jobs
        self._queues = queues
        self._secrets = secrets

    def create(self, name: str) -> str:
        """Make a tenant, and return the word for its secret file, which only this call tells."""
        self._nodes.check_session()
        if not is_tenant_name(name):
            raise UsageError(f"{name!r} cannot be the name of a tenant: {SHOWN}")
        p, access, secret = self._paths, self._access, new_secret()
        parent, jobs = self._nodes.read(exists(p.tenants), children(p.jobs))
        if jobs is None:
            raise self._nodes.unknown()
        if parent is not None and parent.numChildren >= MOST_TENANTS:
            raise UsageError(f"{self._nodes.what} has {MOST_TENANTS} tenants, and may have no more")
        if taken := sorted(job for job in jobs if tenant_of(job, {name})):
            raise UsageError(
                f"{some(taken)} would belong to tenant {name}; delete them, or choose another name"
            )
        own = tenant_access(p.name, name, secret)
        identity = str(own.acl[0].id.id)
        key = signing_key(p.name, name, secret).encode()
        sealed = seal(self._key, name, key, os.urandom(NONCE_BYTES))
        event = self._events.new(ClusterEventKind.TENANT, f"tenant {name} was made")
        about = TenantRecord(
            identity, base64.b64encode(sealed).decode(), created_s=time.time(), by=event.by
        )
        reads, creates = readable(access, identity), readable(access, identity, create=True)

        def build(transaction: TransactionRequest) -> None:
            if parent is None:  # a cluster of an earlier version of edl
                transaction.create(p.tenants)
            transaction.create(p.tenant(name), encode(about.to_json()))
            inbox = encode({"identity": str(access.acl[0].id.id)})
            transaction.create(p.inbox(name), inbox, acl=creates)
            for path in (p.responses(name), p.tenant_jobs(name), p.tenant_view(name)):
                transaction.create(path, b"", acl=reads)
            self._events.append_in(transaction, event)

        try:
            self._nodes.session.transact(f"make tenant {name}", build)
        except Refused:
            self._check_free(name)
            raise
        return secret_word(name, secret)

    def _check_free(self, name: str) -> None:
        """Raise a UsageError if there is a tenant `name`, or what is left of a removed one."""
        about = self._all().get(name)
        if about is not None and about.revoked:
            raise UsageError(
                f"{name!r} was a tenant of {self._nodes.what}, and is removed, but its inbox has "
                "nodes that cannot be removed; choose another name"
            )
        if about is not None:
            raise UsageError(
                f"{self._nodes.what} has a tenant {name} already; `edl tenant delete {name}` and "
                "make it anew, if its secret is lost"
            )

    def names(self) -> tuple[str, ...]:
        """Return the names of all tenants, sorted."""
        return tuple(self.records())

    def records(self, wake: OnChange = None) -> dict[str, TenantRecord]:
        """Return all tenants by name; `wake` is called when one is made or removed."""
        return {name: about for name, about in self._all(wake).items() if not about.revoked}

    def _all(self, wake: OnChange = None) -> dict[str, TenantRecord]:
        """Return the records of all tenants by name, sorted, those of removed ones included."""
        names = sorted(self._nodes.read(children(self._paths.tenants, wake))[0] or ())
        paths = {name: self._paths.tenant(name) for name in names}
        if not paths:
            return {}
        answers = self._nodes.read(*(get(path, wake) for path in paths.values()))
        return {
            name: record(TenantRecord, (path, answer[0]))
            for (name, path), answer in zip(paths.items(), answers, strict=True)
            if answer is not None
        }

    def key(self, name: str, about: TenantRecord) -> str | None:
        key = unseal(self._key, name, base64.b64decode(about.sealed))
        # None: it was sealed with another secret of the cluster.
        return None if key is None else key.decode()

    def owner(self, name: str, about: TenantRecord) -> JobOwner:
        return JobOwner(name, readable(self._access, about.identity))

    def delete(self, name: str) -> int:
        """Remove a tenant; return how many nodes of its inbox stay, and so its name taken."""
        self._nodes.check_session()
        found = self._all()
        if name not in found:
            names = self.names()
            has = f"; it has {some(list(names))}" if names else ", and no other"
            raise UsageError(f"{self._nodes.what} has no tenant {name!r}{has}")
        if not found[name].revoked:
            self._check_gone(name)
            self._revoke(name, found[name])
        try:
            return self._clean(name)
        except NoNodeError:  # another process was faster
            return 0

    def _revoke(self, name: str, about: TenantRecord) -> None:
        """Mark a tenant, with the record `about`, as removed, and remove what it reads."""
        p = self._paths
        event = self._events.new(ClusterEventKind.TENANT, f"tenant {name} was removed")

        def build(transaction: TransactionRequest) -> None:
            transaction.set_data(p.tenant(name), encode(replace(about, revoked=True).to_json()))
            for path in (p.tenant_jobs(name), p.responses(name), p.tenant_view(name)):
                transaction.delete(path)  # without them no job of it can be submitted any more
            self._events.append_in(transaction, event)

        try:
            self._nodes.session.transact(f"remove tenant {name}", build)
        except Refused as refused:
            raise CoordinationError(
                f"tenant {name} was not removed: {refused}; try again"
            ) from refused

    def _clean(self, name: str) -> int:
        """Close the inbox of a removed tenant, and remove it as far as possible."""
        inbox, access = self._paths.inbox(name), self._access
        self._nodes.session.call(
            f"close the inbox of tenant {name}", lambda c: c.set_acls_async(inbox, access.acl)
        )
        waiting = sorted(self._nodes.read(children(inbox))[0] or ())
        left = 0
        while waiting:
            part = [f"{inbox}/{one}" for one in waiting[:PART]]
            try:
                self._remove(name, part)
            except Refused as refused:
                del waiting[refused.index]
                left += isinstance(refused.error, NotEmptyError)
            else:
                del waiting[:PART]
        if not left:
            with suppress(Refused):  # another process was faster
                self._remove(name, [inbox, self._paths.tenant(name)])
        return left  # nodes that the tenant has put others below, which nobody else can remove

    def _remove(self, name: str, nodes: Iterable[str]) -> None:
        def build(transaction: TransactionRequest) -> None:
            for path in nodes:
                transaction.delete(path)

        self._nodes.session.transact(f"remove tenant {name}", build)

    def _check_gone(self, name: str) -> None:
        """Raise a UsageError if the tenant `name` has jobs, ended ones included, or more."""
        # It can read the records and secrets of its jobs, and a later tenant of the name would have
        # its secrets.
        jobs = [job for job in self._jobs.list() if tenant_of(job.name, {name})]
        if living := [job.name for job in jobs if job.life.state is not LifeState.ENDED]:
            number = counted(len(living), "job")
            raise UsageError(
                f"tenant {name} has {number} that {verb(len(living), 'has', 'have')} not ended: "
                f"{some(living)}; wait for their end, or delete them"
            )
        secrets = [one for one in self._secrets.names() if tenant_of(one, {name})]
        if jobs or secrets:
            ended = [f"ended jobs ({some([job.name for job in jobs])})"] if jobs else []
            kept = [f"secrets ({some(secrets)})"] if secrets else []
            raise UsageError(
                f"tenant {name} has {' and '.join(ended + kept)}; remove them first with "
                "`edl delete JOB` and `edl secret delete NAME`"
            )
        if queues := [one for one, queue in self._queues.records().items() if queue.tenant == name]:
            raise UsageError(
                f"tenant {name} has {some(queues)}; delete them, or give them to another one with "
                "`edl queue set QUEUE --tenant OTHER`"
            )

    @property
    def _access(self) -> Access:
        """The name and the secret of the cluster."""
        access = self._nodes.session.access
        assert access is not None
        return access

    @property
    def _key(self) -> str:
        return derived(self._access.secret, "tenants", self._paths.name)
