"""Read a cluster as a whole, and reach its parts: jobs, hosts, queues, secrets, tenants.

Clients and controllers use it, by a :class:`ClusterStore`. What only the leading controller writes
is in ``writer``, what only `edl host` writes in ``host_registration``, and the submission of jobs
in ``submission``. Every method that reads or writes raises CoordinationError in bounded time when
ZooKeeper is away.
"""

from __future__ import annotations

import base64
import os
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

from kazoo.client import TransactionRequest
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError
from kazoo.security import ACL, Id, Permissions

from edl.cluster.lifecycle import (
    ClusterEvent,
    ClusterEventKind,
    JobLifecycle,
    LifeResult,
    LifeState,
    check_change,
    deleted,
    describe_change,
)
from edl.cluster.manifest import JobManifest
from edl.cluster.nodes import ClusterNodes, check_settings
from edl.cluster.queues import check_queue, unknown_queue
from edl.cluster.records import (
    AllocationRecord,
    ClusterRecord,
    HostAssignment,
    HostOffer,
    HostReport,
    JobReasons,
    LeaseTable,
    QueueRecord,
    StoredSecret,
    Wanted,
    is_tenant_name,
    secret_word,
    tenant_of,
)
from edl.cluster.tenants import MAX_TENANTS, TenantRecord
from edl.cluster.view import HostView, JobView, MeasuredThroughput
from edl.errors import (
    FEW,
    CoordinationError,
    HostTaken,
    UnknownCluster,
    UnknownJob,
    UsageError,
    nearest,
    some,
)
from edl.record import Record
from edl.secret_file import NONCE_BYTES, derived, seal, unseal
from edl.text import counted, verb
from edl.zookeeper.access import Access, new_secret
from edl.zookeeper.election import Election, candidate_of
from edl.zookeeper.events import EventLogNodes
from edl.zookeeper.nodes import ATTEMPTS, Values, content, record, record_or_none
from edl.zookeeper.paths import sequence
from edl.zookeeper.reads import OnChange, children, encode, exists, get, ignore_changes
from edl.zookeeper.session import Refused

# ------------------------------------------------------------
# Read and write the event log of a cluster: each change, its reason, and who asked for it.


class ClusterEvents(EventLogNodes[ClusterEvent]):
    """The event log of one cluster."""

    def __init__(self, nodes: ClusterNodes, by: str = "") -> None:
        super().__init__(nodes, ClusterEvent)
        self.by = by  # who writes; it may be changed
        self.clock: Callable[[], float] = time.time  # in seconds since 1970; it may be changed

    def new(
        self,
        kind: ClusterEventKind,
        reason: str,
        job: str = "",
        host: str = "",
        state: LifeState | None = None,
        result: LifeResult | None = None,
        slots: Mapping[str, int] | None = None,
    ) -> ClusterEvent:
        """Return an event with the time now and this object's `by`; write nothing."""
        return ClusterEvent(self.clock(), kind, reason, job, host, self.by, state, result, slots)

    def append_in(self, transaction: TransactionRequest, event: ClusterEvent) -> None:
        """Add to `transaction` a write that appends `event` to the log."""
        path = f"{self._nodes.paths.events}/e-"
        transaction.create(path, encode(event.to_json()), sequence=True)


# ------------------------------------------------------------
# Offer a host to a cluster, read what is assigned to it, and report what lives there.
#
# `edl host` uses it, by one `HostRegistration`. A host belongs to one process, its *owner*, which
# writes itself into the host's node; each write of the owner checks that the node still has the
# version that this process wrote (the fence). A process that was frozen, and whose host another one
# has registered meanwhile, can therefore report and withdraw nothing any more.


@dataclass(frozen=True)
class HostOwner(Record):
    """The record, at the node of a host, of the process that has registered the host."""

    token: str  # that the process has made up, and that no other process has
    machine: str  # a name that no other machine has
    pid: int

    def __str__(self) -> str:
        return f"process {self.pid} on {self.machine}"


class HostRegistration:
    """One process's side of a host of a cluster; call `register` again after a lost session."""

    def __init__(self, nodes: ClusterNodes, host: str, owner: HostOwner) -> None:
        self.host = host
        self.owner = owner
        self._nodes = nodes
        self._path = nodes.paths.host(host)
        self._offer = nodes.paths.offer(host)
        self._fence: int | None = None  # the version of the host's node since we own it
        self._reported: bytes | None = None

    def register(self, offer: HostOffer, is_dead: Callable[[HostOwner], bool]) -> None:
        self._nodes.check_session()
        for _ in range(ATTEMPTS):
            mine, offered = self._nodes.read(get(self._path), get(self._offer))
            if mine is not None and offered is not None:
                self._check_owner(HostOwner.from_json(content(self._path, mine)), is_dead)
            version = None if mine is None else mine[1].version
            # A dead process's offer goes at once, before its session ends.
            stale = None if offered is None else offered[1].version
            build = partial(self._build, offer=offer, version=version, stale=stale)
            try:
                results = self._nodes.session.transact(f"offer host {self.host}", build)
            except Refused as refused:
                if mine is None and isinstance(refused.error, NoNodeError):
                    raise self._nodes.unknown() from None
                continue  # another process was faster, or an offer has vanished: look again
            self._fence = 0 if version is None else results[0].version
            self._reported = None
            return
        raise self._nodes.changed_too_often(self._path)

    def assigned(self, wake: OnChange = None) -> tuple[HostAssignment, int]:
        path = self._nodes.paths.assigned(self.host)
        answer = self._nodes.read(get(path, wake))[0]
        if answer is None:
            raise self._unregistered()
        return record(HostAssignment, (path, answer[0])), answer[1].version

    def report(self, report: HostReport) -> None:
        """Replace the report of what lives on the host, unless the last one was equal."""
        if self._fence is None:
            raise self._unregistered()
        data = encode(report.to_json())
        if data == self._reported:
            return
        fence, path = self._fence, self._nodes.paths.report(self.host)

        def build(transaction: TransactionRequest) -> None:
            transaction.check(self._path, fence)
            transaction.set_data(path, data)

        try:
            self._nodes.session.transact(f"report on host {self.host}", build)
        except Refused as refused:
            raise self._lost() from refused
        self._reported = data

    def withdraw(self) -> None:
        """Remove the offer, so that the host gets no slots any more."""
        if self._fence is None:
            raise self._unregistered()
        fence = self._fence
        if self._nodes.read(exists(self._offer))[0] is None:
            return

        def build(transaction: TransactionRequest) -> None:
            transaction.check(self._path, fence)
            transaction.delete(self._offer)

        try:
            self._nodes.session.transact(f"withdraw host {self.host}", build)
        except Refused as refused:
            if refused.index == 0:
                raise self._lost() from refused

    def _check_owner(self, owner: HostOwner, is_dead: Callable[[HostOwner], bool]) -> None:
        if owner.token != self.owner.token and not is_dead(owner):
            raise UsageError(
                f"host {self.host} of {self._nodes.what} is offered by {owner}; end that `edl "
                "host`, or give this one another name"
            )

    def _build(
        self,
        transaction: TransactionRequest,
        offer: HostOffer,
        version: int | None,
        stale: int | None,
    ) -> None:
        paths, mine = self._nodes.paths, encode(self.owner.to_json())
        if version is None:
            transaction.create(self._path, mine)
            transaction.create(paths.assigned(self.host))
            transaction.create(paths.report(self.host))
        else:
            transaction.set_data(self._path, mine, version)
        if stale is not None:
            transaction.delete(self._offer, stale)
        transaction.create(self._offer, encode(offer.to_json()), ephemeral=True)

    def _lost(self) -> CoordinationError:
        answer = self._nodes.read(get(self._path))[0]
        if answer is None:
            return self._unregistered()
        owner = HostOwner.from_json(content(self._path, answer))
        return HostTaken(
            self.host,
            f"host {self.host} of {self._nodes.what} belongs to {owner} now; nothing was written, "
            "and this process must end",
        )

    def _unregistered(self) -> CoordinationError:
        what = f"host {self.host} is not registered in {self._nodes.what}"
        return CoordinationError(f"{what}; register it again")


# ------------------------------------------------------------
# Note which of many jobs have changed since they were read, so that no others are read again.
#
# A session keeps the answers to reads (`watched_reads`), but looking up a dozen answers for each of
# a thousand jobs takes 0.1 s of processor time, at each change of one job.
#
# A change is noted before `on_change` is called, and a reader takes the names before it reads. So a
# change during a read is in the queue for the next one, and its caller is told to read again.


class WorkQueue:
    """The names of the jobs of which a node has changed since it was read."""

    # Any thread may use it. `on_change` runs on kazoo's connection thread, so it must not block.

    def __init__(self, on_change: OnChange = None) -> None:
        self._on_change = on_change
        self._lock = threading.Lock()
        self._names: set[str] = set()
        self._wakes: dict[str, Callable[[], None]] = {}

    @property
    def has_names(self) -> bool:
        return bool(self._names)

    def wake(self, name: str) -> Callable[[], None]:
        """Return the `wake` of the reads of the job `name`: the same one each time."""
        with self._lock:
            found = self._wakes.get(name)
            if found is None:
                found = self._wakes[name] = partial(self._changed, name)
            return found

    def take(self) -> set[str]:
        with self._lock:
            found, self._names = self._names, set()
            return found

    def put_back(self, names: Iterable[str]) -> None:
        """Let the next `take` return `names`, too: they could not be read."""
        with self._lock:
            self._names.update(names)

    @contextmanager
    def put_back_on_error(self, names: Iterable[str]) -> Iterator[None]:
        """Run the block of a `with` statement; if it raises an error, put `names` back."""
        try:
            yield
        except BaseException:
            self.put_back(names)
            raise

    def keep_only(self, names: Container[str]) -> None:
        with self._lock:
            self._names = {name for name in self._names if name in names}
            if any(name not in names for name in self._wakes):
                kept = {name: wake for name, wake in self._wakes.items() if name in names}
                self._wakes = kept

    def _changed(self, name: str) -> None:
        """Note that a node of `name` has changed; it runs on kazoo's connection thread."""
        with self._lock:
            self._names.add(name)
        if self._on_change is not None:
            self._on_change()


# ------------------------------------------------------------
# Elect the leading controller of a cluster, and read what it says of jobs and leases.
#
# `writer` writes what the leader decides.


class ClusterLeader:
    """The leadership of one cluster: the election, and the records that its leader publishes."""

    def __init__(self, nodes: ClusterNodes) -> None:
        self._nodes = nodes
        self._paths = nodes.paths

    def election(self, candidate: str, about: Mapping[str, Any]) -> Election:
        self._nodes.check_session()
        return Election(
            self._nodes.session,
            self._paths.election,
            candidate,
            leader_path=self._paths.leader,
            record=about,
            missing=self._nodes.unknown,
        )

    def controllers(self) -> list[str]:
        self._nodes.check_administrator("see the controllers")
        names = self._nodes.read(children(self._paths.election))[0]
        if names is None:
            raise self._nodes.unknown()
        return [candidate_of(name) for name in sorted(names, key=sequence)]

    def reasons(self) -> JobReasons:
        """Return what the leader says of each job; before its first plan, the default."""
        path = self._paths.reasons
        # Only if it has changed: in a large cluster it is large.
        answer = self._nodes.read(get(path, ignore_changes))[0]
        found = record_or_none(JobReasons, path, answer)
        return JobReasons() if found is None else found

    def leases(self) -> tuple[LeaseTable, int]:
        path = self._paths.leases
        answer = self._nodes.read(get(path))[0]
        if answer is None:
            return LeaseTable(), -1
        return record(LeaseTable, (path, answer[0])), answer[1].version


# ------------------------------------------------------------
# Keep secrets that users give to a cluster for its jobs, sealed, in ZooKeeper.
#
# The nodes have the ACL of the cluster, as all of its nodes. Their content is sealed with a key
# that follows from the cluster's secret, which is never sent. So neither a listener on the network,
# who learns the key that opens the nodes, nor a reader of ZooKeeper's files learns a secret of a
# user.


MAX_BYTES = 65536  # of a secret

MAX_SECRETS = 1000  # of a cluster


@dataclass(frozen=True)
class SecretStatus:
    """A secret that a cluster keeps, without its content."""

    name: str
    set_s: float  # in seconds since 1970
    by: str  # a user and a machine


class ClusterSecrets:
    """The secrets of users that a cluster keeps."""

    def __init__(self, nodes: ClusterNodes, events: ClusterEvents) -> None:
        self._nodes = nodes
        self._paths = nodes.paths
        self._events = events

    def set(self, name: str, content: bytes) -> bool:
        """Keep `content` as the secret called `name`; replace one of that name."""
        self._nodes.check_session()
        path = self._paths.user_secret(name)
        _check_content(name, content)
        sealed = seal(self._key, name, content, os.urandom(NONCE_BYTES))
        for _ in range(ATTEMPTS):
            before, parent = self._nodes.read(get(path), exists(self._paths.secrets))
            if before is not None and self._content(name, path, before[0]) == content:
                return False
            if before is None and parent is not None and parent.numChildren >= MAX_SECRETS:
                raise UsageError(
                    f"{self._nodes.what} has {MAX_SECRETS} secrets, and may have no more; delete "
                    "some with `edl secret delete`"
                )
            event = self._event(f"the secret {name} was set{'' if before is None else ' anew'}")
            stored = StoredSecret(base64.b64encode(sealed).decode(), time.time(), event.by)
            version = None if before is None else before[1].version
            if self._write(path, encode(stored.to_json()), version, parent is None, event):
                return True
        raise self._nodes.changed_too_often(path)

    def delete(self, name: str) -> None:
        self._nodes.check_session()
        path, event = self._paths.user_secret(name), self._event(f"the secret {name} was deleted")

        def build(transaction: TransactionRequest) -> None:
            transaction.delete(path)
            self._events.append_in(transaction, event)

        names = self.names()
        if name in names:
            try:
                self._nodes.session.transact(f"delete secret {name}", build)
                return
            except Refused:  # another process was faster
                names = self.names()
        raise UsageError(self.unknown(name, names))

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._nodes.read(children(self._paths.secrets))[0] or ()))

    def list(self) -> tuple[SecretStatus, ...]:
        """Return all secrets without their contents, sorted by name."""
        found = []
        for name, stored in self._read(self.names()).items():
            found.append(SecretStatus(name, stored.set_s, stored.by))
        return tuple(found)

    def contents(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the contents of the secrets called `names`, by name; unknown ones are left out."""
        found = self._read(names)
        return {name: self._unsealed(name, stored) for name, stored in found.items()}

    def unknown(self, name: str, names: Iterable[str], asks: str = "") -> str:
        known = sorted(names)
        what = f"{self._nodes.what} has no secret {name!r}{asks}"
        hint = f"; give it one with `edl secret set {name}`" if asks else ""
        if not known:
            return f"{what}{hint}" if hint else f"{what}, and no other"
        near = known if len(known) <= FEW else nearest(name, known)
        return f"{what}{hint}; it has {', '.join(near)}{'' if near == known else ', ...'}"

    # --- the nodes

    @property
    def _key(self) -> str:
        access = self._nodes.session.access
        assert access is not None
        return derived(access.secret, "secrets", self._paths.name)

    def _read(self, names: Iterable[str]) -> dict[str, StoredSecret]:
        paths = {name: self._paths.user_secret(name) for name in names}
        answers = self._nodes.read(*(get(path) for path in paths.values()))
        pairs = zip(paths.items(), answers, strict=True)
        return {
            name: record(StoredSecret, (path, answer[0]))
            for (name, path), answer in pairs
            if answer is not None
        }

    def _content(self, name: str, path: str, data: bytes) -> bytes | None:
        """Return the content of the node at `path`; None if nobody can unseal it any more."""
        try:
            return self._unsealed(name, record(StoredSecret, (path, data)))
        except CoordinationError:
            return None

    def _unsealed(self, name: str, stored: StoredSecret) -> bytes:
        """Return the content of a secret; raise a CoordinationError if it was changed by others."""
        try:
            content = unseal(self._key, name, base64.b64decode(stored.sealed))
        except ValueError:
            content = None
        if content is None:
            raise CoordinationError(
                f"the secret {name} of {self._nodes.what} was sealed with another key; set it "
                f"again with `edl secret set {name}`"
            )
        return content

    def _write(
        self, path: str, data: bytes, version: int | None, is_first: bool, event: ClusterEvent
    ) -> bool:
        """Write a secret and an event; return False if others have changed the node meanwhile."""

        def build(transaction: TransactionRequest) -> None:
            if is_first:  # a cluster of an earlier version of edl
                transaction.create(self._paths.secrets)
            if version is None:
                transaction.create(path, data)
            else:
                transaction.set_data(path, data, version)
            self._events.append_in(transaction, event)

        try:
            self._nodes.session.transact("set a secret", build)
        except Refused as refused:
            if is_first and not isinstance(refused.error, NodeExistsError):
                raise self._nodes.unknown() from None
            return False
        return True

    def _event(self, reason: str) -> ClusterEvent:
        return self._events.new(ClusterEventKind.SECRET, reason)


def _check_content(name: str, content: bytes) -> None:
    if not content:
        raise UsageError(f"the secret {name} would be empty; give its value")
    if len(content) > MAX_BYTES:
        raise UsageError(
            f"the secret {name} has more than {MAX_BYTES} bytes; put large data into files of the "
            "hosts"
        )


# ------------------------------------------------------------
# Read and change the settings of a cluster: its policy and time limits.


class ClusterSettings:
    def __init__(self, nodes: ClusterNodes, events: ClusterEvents) -> None:
        self._nodes = nodes
        self._path = nodes.paths.cluster
        self._events = events

    def get(self) -> ClusterRecord:
        """Read and return the settings of the cluster: its policy and time limits."""
        self._nodes.check_administrator("see the settings of the cluster")
        answer = self._nodes.read(get(self._path))[0]
        if answer is None:
            raise self._nodes.unknown()
        return record(ClusterRecord, (self._path, answer[0]))

    def change(self, change: Callable[[ClusterRecord], ClusterRecord]) -> ClusterRecord:
        """Change how the cluster decides, such as its policy, log it; return the new settings."""
        self._nodes.check_administrator("change the settings of the cluster")
        path = self._path

        def changed(found: Mapping[str, Values]) -> tuple[Mapping[str, Values], ClusterEvent]:
            before = found[path]
            settings = ClusterRecord.from_json(before)
            check_settings(self._nodes.paths.name, settings)
            after = change(settings).to_json()
            news = [f"{name} is {after[name]}" for name in after if after[name] != before.get(name)]
            return {path: after}, self._events.new(ClusterEventKind.POLICY, ", ".join(news))

        return ClusterRecord.from_json(self._nodes.change_together((path,), changed)[path])


# ------------------------------------------------------------
# Read the nodes of the jobs of a cluster, of which there may be thousands.
#
# What was read is kept until it changes, so a leader that looks at a large cluster again and again
# looks only at what has changed.


PASSES = 20  # over nodes that others change meanwhile

FEW_PASSES, PASSES_S = 5, 0.5  # after so many, and so long, others write without a pause

Answers = tuple[Any, Any, Any]

"""The answers to the reads of manifest, wanted and life of one job: (data, stat) of each."""


@dataclass(frozen=True)
class StoredJob:
    """One job of a cluster, as it was read from ZooKeeper by `ClusterStore`."""

    name: str
    order: int  # grows with each submission
    submitted_s: float  # by ZooKeeper's clock, in seconds since 1970
    manifest: JobManifest
    wanted: Wanted  # by users
    life: JobLifecycle  # that the leader keeps; the default until it has seen the job
    life_version: int  # of the node `life`, which a write must name

    @cached_property
    def view(self) -> JobView:
        """The same job as the value that the plan of a cluster reads; its `run` is None."""
        return JobView(
            name=self.name,
            order=self.order,
            manifest=self.manifest,
            wanted=self.wanted,
            life=self.life,
            submitted_s=self.submitted_s,
        )


class OptionalNodes(NamedTuple):
    """The nodes of a job that it need not have."""

    secret: str | None  # of its runs; None before the first
    measured: MeasuredThroughput | None  # by former runs; None: nothing


class JobReader:
    """A reader of jobs that keeps what it has watched; one thread at a time calls `watched`."""

    def __init__(self, nodes: ClusterNodes, changed: Callable[[], None]) -> None:
        self.nodes = nodes
        self.paths = nodes.paths
        self._changed_jobs = WorkQueue(changed)
        self._stored: dict[str, StoredJob] = {}  # as they were read last, with watches
        self._changed_optional = WorkQueue()
        self._optional: dict[str, OptionalNodes] = {}  # by job

    def read(self, names: Iterable[str]) -> tuple[StoredJob, ...]:
        return tuple(sorted(self._read_jobs(names, None), key=lambda job: job.order))

    def watched(self, names: Sequence[str]) -> tuple[StoredJob, ...]:
        """Return the jobs called `names` that exist; only those that have changed are read."""
        known = set(names)
        self._changed_jobs.keep_only(known)
        due = known - self._stored.keys() | self._changed_jobs.take() & known
        with self._changed_jobs.put_back_on_error(due):
            found = self._read_jobs(due, self._changed_jobs.wake)
        kept = {n: job for n, job in self._stored.items() if n in known and n not in due}
        self._stored = kept | {job.name: job for job in found}
        return tuple(sorted(self._stored.values(), key=lambda job: job.order))

    def _read_jobs(
        self, names: Iterable[str], wake_of: Callable[[str], Callable[[], None]] | None
    ) -> list[StoredJob]:
        found: list[StoredJob] = []
        rest = sorted(names)
        for _ in range(PASSES):
            wakes = [None if wake_of is None else wake_of(name) for name in rest]
            parts = [
                [get(path, wake) for path in self._job_paths(name)]
                for name, wake in zip(rest, wakes, strict=True)
            ]
            answers = self.nodes.read(*(read for part in parts for read in part))
            torn = []
            for name, part, three in zip(rest, parts, in_threes(answers), strict=True):
                if None in three:
                    continue
                if three[0][1].czxid == three[1][1].czxid == three[2][1].czxid:
                    found.append(_stored_job(name, [read.path for read in part], three))
                else:
                    torn.append(name)  # of two submissions: replaced while it was read
            if not (rest := torn):
                break
        return found

    def _job_paths(self, name: str) -> tuple[str, str, str]:
        return self.paths.manifest(name), self.paths.wanted(name), self.paths.life(name)

    def secrets_and_measured(
        self, jobs: Iterable[str], watch: bool = True
    ) -> tuple[dict[str, str], dict[str, MeasuredThroughput]]:
        names = list(jobs)
        if not watch:
            found = self._read_optional(names, None)
        else:
            found = self._optional = self._watched_optional(set(names))
        return (
            {name: one.secret for name, one in found.items() if one.secret is not None},
            {name: one.measured for name, one in found.items() if one.measured is not None},
        )

    def _watched_optional(self, names: set[str]) -> dict[str, OptionalNodes]:
        """Return the optional nodes of the jobs `names` that exist; changed ones are read."""
        self._changed_optional.keep_only(names)
        due = names - self._optional.keys() | self._changed_optional.take() & names
        with self._changed_optional.put_back_on_error(due):
            found = self._read_optional(sorted(due), self._changed_optional.wake)
        kept = {n: one for n, one in self._optional.items() if n in names and n not in due}
        return kept | found

    def _read_optional(
        self, names: Sequence[str], wake_of: Callable[[str], Callable[[], None]] | None
    ) -> dict[str, OptionalNodes]:
        wakes = {name: None if wake_of is None else wake_of(name) for name in names}
        reads = [children(self.paths.job(name), wakes[name]) for name in names]
        answers = zip(names, self.nodes.read(*reads), strict=True)
        there = {name: nodes for name, nodes in answers if nodes is not None}
        secrets, measured = (
            self._of_jobs(node, [name for name, nodes in there.items() if node in nodes], wakes)
            for node in ("secret", "measured")
        )
        found = {}
        for name in there:
            steps = measured.get(name)
            found[name] = OptionalNodes(
                str(secrets[name]["secret"]) if name in secrets else None,
                MeasuredThroughput.from_json(steps) if steps else None,
            )
        return found

    def _of_jobs(
        self, node: str, names: Sequence[str], wakes: Mapping[str, OnChange]
    ) -> dict[str, Values]:
        paths = [f"{self.paths.job(name)}/{node}" for name in names]
        reads = (get(path, wakes[name]) for path, name in zip(paths, names, strict=True))
        answers = self.nodes.read(*reads)
        found = zip(names, paths, answers, strict=True)
        contents = {name: content(path, answer) for name, path, answer in found}
        return {name: values for name, values in contents.items() if values}


def in_threes(answers: Sequence[Any]) -> Iterator[Answers]:
    return zip(answers[::3], answers[1::3], answers[2::3], strict=True)


def _stored_job(name: str, paths: Sequence[str], answers: Sequence[Any]) -> StoredJob:
    manifest, wanted, life = answers
    return StoredJob(
        name,
        order=manifest[1].czxid,
        submitted_s=manifest[1].ctime / 1000.0,
        manifest=record(JobManifest, (paths[0], manifest[0])),
        wanted=record(Wanted, (paths[1], wanted[0])),
        life=record(JobLifecycle, (paths[2], life[0])),
        life_version=life[1].version,
    )


# ------------------------------------------------------------
# Read the hosts of a cluster, and drain them.
#
# What a host offers and reports, `host_registration` writes; what it is assigned, `writer` does.


class ClusterHosts:
    def __init__(self, nodes: ClusterNodes, events: ClusterEvents) -> None:
        self._nodes = nodes
        self._paths = nodes.paths
        self._events = events

    def list(self) -> tuple[HostView, ...]:
        names = self._nodes.read(children(self._paths.hosts))[0]
        if names is None:
            raise self._nodes.unknown()
        return self.read(names)

    def read(self, names: Iterable[str], wake: OnChange = None) -> tuple[HostView, ...]:
        p, known = self._paths, sorted(names)
        parts = [(p.assigned(name), p.report(name)) for name in known]
        reads = (
            (children(p.host(name), wake), *(get(path, wake) for path in part))
            for name, part in zip(known, parts, strict=True)
        )
        answers = self._nodes.read(*(read for three in reads for read in three))
        threes = tuple(in_threes(answers))
        offering = [
            n for n, three in zip(known, threes, strict=True) if "offer" in (three[0] or ())
        ]
        [offers] = self._nodes.read_groups([p.offer(name) for name in offering], wake=wake)
        offered = dict(offers)
        found = []
        for name, part, (nodes, assigned, report) in zip(known, parts, threes, strict=True):
            if nodes is not None and assigned and report:
                path = p.offer(name)
                found.append(
                    HostView(
                        name,
                        offer=record(HostOffer, (path, offered[path])) if path in offered else None,
                        drained="drained" in nodes,
                        assigned=record(HostAssignment, (part[0], assigned[0])),
                        version=assigned[1].version,
                        report=record_or_none(HostReport, part[1], report),
                    )
                )
        return tuple(found)

    def set_drained(self, host: str, drained: bool) -> bool:
        """Say whether a host shall be without jobs, and log it; the leader acts on it later."""
        self._nodes.check_administrator("drain hosts")
        self._nodes.check_session()
        path = self._paths.drained(host)
        reason = f"host {host} is drained" if drained else f"host {host} may have jobs again"
        event = self._events.new(ClusterEventKind.DRAIN, reason, host=host)

        def build(transaction: TransactionRequest) -> None:
            if drained:
                transaction.create(path)
            elif there is not None:
                transaction.delete(path)
            if forgets:
                tried = replace(view.assigned, failures={}, out="")
                data = encode(tried.to_json())
                transaction.set_data(self._paths.assigned(host), data, view.version)
            self._events.append_in(transaction, event)

        names, there = self._nodes.read(children(self._paths.hosts), exists(path))
        if names is None:
            raise self._nodes.unknown()
        if host not in names:
            raise UsageError(
                f"{self._nodes.what} has no host named {host!r}{_known_hosts(host, names)}"
            )
        view = next(iter(self.read([host])), HostView(host))
        forgets = not drained and bool(view.assigned.failures)
        if (there is not None) is drained and not forgets:
            return False
        try:
            self._nodes.session.transact(f"drain {host}", build)
        except Refused as refused:
            if isinstance(refused.error, BadVersionError):  # the leader has just planned
                return self.set_drained(host, drained)
            if isinstance(refused.error, NodeExistsError | NoNodeError):
                return False  # another process was faster
            raise CoordinationError(f"{path} could not be written: {refused.error}") from refused
        return True


def _known_hosts(host: str, names: Sequence[str]) -> str:
    if not names:
        return "; start one with `edl host`"
    if len(names) <= FEW:
        return f"; its hosts: {', '.join(sorted(names))}"
    return f"; the nearest of {len(names)}: {', '.join(nearest(host, sorted(names)))}"


# ------------------------------------------------------------
# Read the jobs of a cluster, and change what users want of them.
#
# `submission` submits jobs, and `writer` writes their states and removes them.


def check_submission(job: StoredJob, submitted_s: float) -> None:
    if job.submitted_s != submitted_s:
        raise UnknownJob(job.name, (job.name,))


class ClusterJobs:
    def __init__(self, nodes: ClusterNodes, events: ClusterEvents, reader: JobReader) -> None:
        self._nodes = nodes
        self._paths = nodes.paths
        self._events = events
        self._reader = reader

    # --- reading

    def list(self) -> tuple[StoredJob, ...]:
        names = self._nodes.read(children(self._paths.jobs))[0]
        if names is None:
            raise self._nodes.unknown()
        return self._reader.read(names)

    def get(self, name: str) -> StoredJob:
        found = self._reader.read([name])
        if not found:
            raise self._nodes.unknown_job(name)
        return found[0]

    def has(self, name: str) -> bool:
        return self._nodes.read(exists(self._paths.manifest(name)))[0] is not None

    def full_name(self, job: str) -> str:
        return job

    def log_access(self, job: str) -> Access:
        access = self._nodes.session.access
        assert access is not None
        return access

    def secret(self, job: str) -> str | None:
        """Return the secret of the runs of `job`; None before its first run, or without it."""
        path = self._paths.secret(job)
        secret = content(path, self._nodes.read(get(path))[0]).get("secret")
        return None if secret is None else str(secret)

    def secrets_and_measured(
        self, jobs: Iterable[str], watch: bool = True
    ) -> tuple[dict[str, str], dict[str, MeasuredThroughput]]:
        return self._reader.secrets_and_measured(jobs, watch)

    # --- what users want

    def change_wanted(self, job: str, change: Callable[[Wanted], Wanted]) -> Wanted:
        return self._change_wanted(job, lambda before, _: change(before))

    def delete(self, job: str, submitted_s: float | None = None) -> Wanted:
        # Without `submitted_s`, a repeated call removes the records of the job that the first one
        # has ended, or ends another job that has got its name.
        def change(before: Wanted, life: JobLifecycle) -> Wanted:
            if submitted_s is not None:
                check_submission(self.get(job), submitted_s)
            return deleted(before, life, once=submitted_s is not None)

        return self._change_wanted(job, change)

    def _change_wanted(self, job: str, change: Callable[[Wanted, JobLifecycle], Wanted]) -> Wanted:
        wanted, life = self._paths.wanted(job), self._paths.life(job)

        def changed(found: Mapping[str, Values]) -> tuple[Mapping[str, Values], ClusterEvent]:
            before, state = (
                Wanted.from_json(found[wanted]),
                JobLifecycle.from_json(found.get(life, {})),
            )
            after = change(before, state)
            check_change(job, state, before, after)
            reason = describe_change(before, after)
            event = self._events.new(ClusterEventKind.WANTED, reason, job=job)
            return {wanted: after.to_json()}, event

        try:
            return Wanted.from_json(self._nodes.change_together((wanted, life), changed)[wanted])
        except UnknownCluster:
            raise self._nodes.unknown_job(job) from None


# ------------------------------------------------------------
# Keep the queues of a cluster in ZooKeeper: a node each, with its quota, weight and limit.


MAX_QUEUES = 1000  # of a cluster


class ClusterQueues:
    def __init__(self, nodes: ClusterNodes, events: ClusterEvents, jobs: ClusterJobs) -> None:
        self._nodes = nodes
        self._paths = nodes.paths
        self._events = events
        self._jobs = jobs

    def records(self) -> dict[str, QueueRecord]:
        """Return the queues of the cluster by name, sorted; empty if it has none."""
        self._nodes.check_administrator("see the queues of the cluster")
        return self.read(self._nodes.read(children(self._paths.queues))[0] or ())

    def read(self, names: Iterable[str], wake: OnChange = None) -> dict[str, QueueRecord]:
        paths = {name: self._paths.queue(name) for name in sorted(names)}
        if not paths:
            return {}
        answers = self._nodes.read(*(get(path, wake) for path in paths.values()))
        return {
            name: record(QueueRecord, (path, answer[0]))
            for (name, path), answer in zip(paths.items(), answers, strict=True)
            if answer is not None
        }

    def change(self, name: str, change: Callable[[QueueRecord], QueueRecord]) -> QueueRecord:
        self._nodes.check_session()
        path = self._paths.queue(name)
        for _ in range(ATTEMPTS):
            answer, parent = self._nodes.read(get(path), exists(self._paths.queues))
            before = QueueRecord() if answer is None else record(QueueRecord, (path, answer[0]))
            after = change(before)
            check_queue(name, after)
            if answer is not None and after == before:
                return before
            if answer is None and parent is not None and parent.numChildren >= MAX_QUEUES:
                raise UsageError(
                    f"{self._nodes.what} has {MAX_QUEUES} queues, and may have no more; delete "
                    "some with `edl queue delete`"
                )
            if self._write(name, after, answer, parent is None):
                return after
        raise self._nodes.changed_too_often(path)

    def delete(self, name: str) -> None:
        """Remove the queue called `name`, which must have no jobs that have not ended."""
        self._nodes.check_session()
        path, queues = self._paths.queue(name), self.records()
        jobs = [
            job.name
            for job in self._jobs.list()
            if job.manifest.queue == name and job.life.state is not LifeState.ENDED
        ]
        if name in queues and jobs:
            number = counted(len(jobs), "job")
            raise UsageError(
                f"queue {name} has {number} that {verb(len(jobs), 'has', 'have')} not ended: "
                f"{some(jobs)}; wait for their end, or delete them"
            )
        event = self._events.new(ClusterEventKind.QUEUE, f"queue {name} was deleted")

        def build(transaction: TransactionRequest) -> None:
            transaction.delete(path)
            self._events.append_in(transaction, event)

        if name in queues:
            try:
                self._nodes.session.transact("delete a queue", build)
                return
            except Refused:  # another process was faster
                queues = self.records()
        raise UsageError(unknown_queue(self._nodes.what, name, queues))

    def _write(self, name: str, queue: QueueRecord, before: Any, is_first: bool) -> bool:
        """Write a queue and an event; return False if others have changed the queue meanwhile."""
        path = self._paths.queue(name)
        event = self._events.new(ClusterEventKind.QUEUE, f"queue {name}: {queue}")
        data = encode(replace(queue, set_s=time.time(), by=event.by).to_json())

        def build(transaction: TransactionRequest) -> None:
            if is_first:  # a cluster of an earlier version of edl
                transaction.create(self._paths.queues)
            if before is None:
                transaction.create(path, data)
            else:
                transaction.set_data(path, data, before[1].version)
            self._events.append_in(transaction, event)

        try:
            self._nodes.session.transact("set a queue", build)
        except Refused as refused:
            if is_first and not isinstance(refused.error, NodeExistsError):
                raise self._nodes.unknown() from None
            return False
        return True


# ------------------------------------------------------------
# Make, list and remove the tenants of a cluster (docs/adr/0027).


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
    rights = Permissions.READ | (Permissions.CREATE if create else 0)
    return [*access.acl, ACL(rights, Id("digest", identity))]


def whole_acl(identity: str) -> list[ACL]:
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
        self._nodes.check_session()
        if not is_tenant_name(name):
            raise UsageError(f"{name!r} cannot be the name of a tenant: {SHOWN}")
        p, access, secret = self._paths, self._access, new_secret()
        parent, jobs = self._nodes.read(exists(p.tenants), children(p.jobs))
        if jobs is None:
            raise self._nodes.unknown()
        if parent is not None and parent.numChildren >= MAX_TENANTS:
            raise UsageError(f"{self._nodes.what} has {MAX_TENANTS} tenants, and may have no more")
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
        return tuple(self.records())

    def records(self, wake: OnChange = None) -> dict[str, TenantRecord]:
        """Return all tenants by name; `wake` is called when one is made or removed."""
        return {name: about for name, about in self._all(wake).items() if not about.revoked}

    def _all(self, wake: OnChange = None) -> dict[str, TenantRecord]:
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
        access = self._nodes.session.access
        assert access is not None
        return access

    @property
    def _key(self) -> str:
        return derived(self._access.secret, "tenants", self._paths.name)


@dataclass(frozen=True)
class ClusterSnapshot:
    """All that a plan needs of a cluster's nodes."""

    settings: ClusterRecord
    allocation: AllocationRecord  # the default before the first decision
    allocation_version: int  # which a write of it must name
    jobs: tuple[StoredJob, ...]  # in the order of submission
    hosts: tuple[HostView, ...]  # by name, each with the version of its `assigned`
    leader: Mapping[str, Any]  # of the newest term, with its `term`; empty before the first
    secrets: frozenset[str] = frozenset()  # the names
    queues: Mapping[str, QueueRecord] = field(default_factory=dict)  # by name
    tenants: frozenset[str] = frozenset()  # the names


class ClusterStore:
    """The nodes of one cluster in ZooKeeper, read and written as records."""

    # `on_change` runs on kazoo's connection thread, so it must not block.

    def __init__(self, nodes: ClusterNodes, by: str = "", on_change: OnChange = None) -> None:
        self.nodes = nodes
        self.paths = nodes.paths
        self._on_change = on_change
        self._changes = 0
        self._reader = JobReader(nodes, self._changed)
        self.events = ClusterEvents(nodes, by)
        self.jobs = ClusterJobs(nodes, self.events, self._reader)
        self.hosts = ClusterHosts(nodes, self.events)
        self.queues = ClusterQueues(nodes, self.events, self.jobs)
        self.secrets = ClusterSecrets(nodes, self.events)  # of users
        self.tenants = ClusterTenants(nodes, self.events, self.jobs, self.queues, self.secrets)
        self.settings = ClusterSettings(nodes, self.events)
        self.leader = ClusterLeader(nodes)

    def snapshot(self) -> ClusterSnapshot:
        """Read what has changed since the last call, all as of one time; one thread at a time."""
        began_s = time.monotonic()
        for number in range(PASSES):
            before = self._changes
            found = self._pass()
            if self._changes == before:  # no watch has fired, so all of it is still so
                break
            # Others write without a pause. What only the leader writes is of one time even so.
            if number >= FEW_PASSES and time.monotonic() - began_s >= PASSES_S:
                break
        return found

    def observe(self) -> ClusterSnapshot:
        """Read the cluster once, without watches, as a client does that looks at it."""
        return self._pass(watch=False)

    def _changed(self) -> None:
        """Count a change of a node that was read; on kazoo's connection thread."""
        self._changes += 1
        if self._on_change is not None:
            self._on_change()

    def _pass(self, watch: bool = True) -> ClusterSnapshot:
        """Read each node once; with `watch`, unchanged ones come from the session's cache."""
        self.nodes.check_administrator("see the cluster as a whole")
        p, wake = self.paths, self._changed if watch else None
        single = (p.cluster, p.allocation, p.leader)
        *values, jobs, hosts, secrets, queues = self.nodes.read(
            *(get(path, wake) for path in single),
            *(children(path, wake) for path in (p.jobs, p.hosts, p.secrets, p.queues)),
        )
        if None in (*values, jobs, hosts):
            raise self.nodes.unknown()
        cluster, allocation, leader = values
        return ClusterSnapshot(
            settings=record(ClusterRecord, (p.cluster, cluster[0])),
            allocation=record(AllocationRecord, (p.allocation, allocation[0])),
            allocation_version=allocation[1].version,
            jobs=self._reader.watched(jobs) if watch else self._reader.read(jobs),
            hosts=self.hosts.read(hosts, wake),
            leader=content(p.leader, leader),
            secrets=frozenset(secrets or ()),
            queues=self.queues.read(queues or (), wake),
            tenants=frozenset(self.tenants.records(wake)),
        )
