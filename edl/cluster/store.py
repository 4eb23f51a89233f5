"""Read a cluster as a whole, and reach its parts: jobs, hosts, queues, secrets, tenants.

Clients and controllers use it, by a :class:`ClusterStore`. What only the leading controller writes
is in ``writer``, and the submission of jobs in ``submission``. Every method that reads or writes
raises CoordinationError in bounded time when ZooKeeper is away.
"""

from __future__ import annotations

import base64
import os
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

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

T = TypeVar("T")

# ------------------------------------------------------------
# Read and write the event log of a cluster: each change, its reason, and who asked for it.


class ClusterEvents(EventLogNodes[ClusterEvent]):
    """The event log of one cluster, and the changes that are written together with an event."""

    def __init__(self, nodes: ClusterNodes, by: str = "") -> None:
        super().__init__(nodes, ClusterEvent)
        self.by = by  # who writes; it may be changed
        self.clock: Callable[[], float] = time.time  # in seconds since 1970; it may be changed
        self._cluster = nodes

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

    def transact(
        self, reason: str, event: ClusterEvent, build: Callable[[TransactionRequest], None]
    ) -> None:
        """Do what `build` adds to a transaction, and append `event` to the log, or do neither."""

        def whole(transaction: TransactionRequest) -> None:
            build(transaction)
            path = f"{self._nodes.paths.events}/e-"
            transaction.create(path, encode(event.to_json()), sequence=True)

        self._nodes.transact(reason, whole)

    def put(
        self, path: str, word: str, change: Callable[[Any], tuple[Record, ClusterEvent] | None]
    ) -> bool:
        """Write what `change` makes of the answer to the read of a node; None: nothing."""
        self._cluster.check_session()
        parent = path.rpartition("/")[0]
        for _ in range(ATTEMPTS):
            answer, above = self._nodes.read(get(path), exists(parent))
            if above is None:
                raise self._nodes.unknown()
            if (new := change(answer)) is None:
                return False
            if answer is None and above.numChildren >= MAX_NAMED:
                raise UsageError(
                    f"{self._nodes.what} has {MAX_NAMED} {word}s, and may have no more; delete "
                    f"some with `edl {word} delete`"
                )

            def build(
                transaction: TransactionRequest,
                data: bytes = encode(new[0].to_json()),
                old: Any = answer,
            ) -> None:
                if old is None:
                    transaction.create(path, data)
                else:
                    transaction.set_data(path, data, old[1].version)

            with suppress(Refused):  # others have changed the node meanwhile
                self.transact(f"set a {word}", new[1], build)
                return True
        raise self._nodes.changed_too_often(path)

    def remove(self, path: str, word: str, event: ClusterEvent) -> bool:
        """Remove a node; return False if another process was faster."""
        try:
            self.transact(f"delete a {word}", event, lambda transaction: transaction.delete(path))
        except Refused:
            return False
        return True


class ClusterPart:
    def __init__(self, nodes: ClusterNodes, events: ClusterEvents) -> None:
        self._nodes = nodes
        self._paths = nodes.paths
        self._events = events


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
        self._nodes, self._paths = nodes, nodes.paths
        self._path = nodes.paths.host(host)
        self._offer = nodes.paths.offer(host)
        self._fence: int | None = None  # the version of the host's node since we own it
        self._reported: bytes | None = None

    def register(self, offer: HostOffer, is_dead: Callable[[HostOwner], bool]) -> None:
        self._nodes.check_session()
        for _ in range(ATTEMPTS):
            mine, offered = self._nodes.read(get(self._path), get(self._offer))
            if mine is not None and offered is not None:
                owner = HostOwner.from_json(content(self._path, mine))
                if owner.token != self.owner.token and not is_dead(owner):
                    raise UsageError(
                        f"host {self.host} of {self._nodes.what} is offered by {owner}; end that "
                        "`edl host`, or give this one another name"
                    )
            build = partial(self._build, offer=offer, mine=mine, offered=offered)
            try:
                results = self._nodes.session.transact(f"offer host {self.host}", build)
            except Refused as refused:
                if mine is None and isinstance(refused.error, NoNodeError):
                    raise self._nodes.unknown() from None
                continue  # another process was faster, or an offer has vanished: read again
            self._fence = 0 if mine is None else results[0].version
            self._reported = None
            return
        raise self._nodes.changed_too_often(self._path)

    def assigned(self, wake: OnChange = None) -> tuple[HostAssignment, int]:
        path = self._paths.assigned(self.host)
        answer = self._nodes.read(get(path, wake))[0]
        if answer is None:
            raise self._unregistered()
        return record(HostAssignment, (path, answer[0])), answer[1].version

    def report(self, report: HostReport) -> None:
        """Replace the report of what lives on the host, unless the last one was equal."""
        data = encode(report.to_json())
        if self._fence is not None and data == self._reported:
            return
        path = self._paths.report(self.host)
        self._write("report on", lambda transaction: transaction.set_data(path, data))
        self._reported = data

    def withdraw(self) -> None:
        if self._fence is None or self._nodes.read(exists(self._offer))[0] is not None:
            self._write("withdraw", lambda transaction: transaction.delete(self._offer))

    def _write(self, word: str, write: Callable[[TransactionRequest], object]) -> None:
        if self._fence is None:
            raise self._unregistered()
        fence = self._fence

        def build(transaction: TransactionRequest) -> None:
            transaction.check(self._path, fence)
            write(transaction)

        try:
            self._nodes.session.transact(f"{word} host {self.host}", build)
        except Refused as refused:
            if refused.index == 0:
                raise self._lost() from refused

    def _build(
        self, transaction: TransactionRequest, offer: HostOffer, mine: Any, offered: Any
    ) -> None:
        data = encode(self.owner.to_json())
        if mine is None:
            transaction.create(self._path, data)
            transaction.create(self._paths.assigned(self.host))
            transaction.create(self._paths.report(self.host))
        else:
            transaction.set_data(self._path, data, mine[1].version)
        if offered is not None:  # a dead process's offer goes at once, before its session ends
            transaction.delete(self._offer, offered[1].version)
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
        return CoordinationError(
            f"host {self.host} is not registered in {self._nodes.what}; register it again"
        )


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
    def __init__(self, nodes: ClusterNodes) -> None:
        self._nodes = nodes
        self._paths = nodes.paths

    def election(self, candidate: str, details: Mapping[str, Any]) -> Election:
        self._nodes.check_session()
        return Election(
            self._nodes.session,
            self._paths.election,
            candidate,
            leader_path=self._paths.leader,
            record=details,
            missing=self._nodes.unknown,
        )

    def controllers(self) -> list[str]:
        self._nodes.check_administrator("see the controllers")
        names = self._nodes.names(self._paths.election)
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


@dataclass(frozen=True)
class SecretStatus:
    """A secret that a cluster keeps, without its content."""

    name: str
    set_s: float  # in seconds since 1970
    by: str  # a user and a machine


class ClusterSecrets(ClusterPart):
    def set(self, name: str, content: bytes) -> bool:
        """Keep `content` as the secret called `name`; False: it was kept before."""
        if not content:
            raise UsageError(f"the secret {name} would be empty; give its value")
        if len(content) > MAX_BYTES:
            raise UsageError(
                f"the secret {name} has more than {MAX_BYTES} bytes; put large data into files of "
                "the hosts"
            )
        path = self._paths.user_secret(name)

        def change(answer: Any) -> tuple[StoredSecret, ClusterEvent] | None:
            if answer is not None:
                # One that nobody can unseal any more is replaced.
                with suppress(CoordinationError):
                    if self._unsealed(name, record(StoredSecret, (path, answer[0]))) == content:
                        return None
            event = self._event(f"the secret {name} was set{'' if answer is None else ' anew'}")
            sealed = seal(self._key, name, content, os.urandom(NONCE_BYTES))
            return StoredSecret(base64.b64encode(sealed).decode(), time.time(), event.by), event

        return self._events.put(path, "secret", change)

    def delete(self, name: str) -> None:
        self._nodes.check_session()
        path, event = self._paths.user_secret(name), self._event(f"the secret {name} was deleted")
        if name not in self.names() or not self._events.remove(path, "secret", event):
            raise UsageError(self.unknown(name, self.names()))

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._nodes.read(children(self._paths.secrets))[0] or ()))

    def list(self) -> tuple[SecretStatus, ...]:
        stored = self._read(self.names()).items()
        return tuple(SecretStatus(name, one.set_s, one.by) for name, one in stored)

    def contents(self, names: Iterable[str]) -> dict[str, bytes]:
        """Return the contents of the secrets called `names`, by name; unknown ones are left out."""
        stored = self._read(names).items()
        return {name: self._unsealed(name, secret) for name, secret in stored}

    def unknown(self, name: str, names: Iterable[str], asks: str = "") -> str:
        known = sorted(names)
        what = f"{self._nodes.what} has no secret {name!r}{asks}"
        hint = f"; give it one with `edl secret set {name}`" if asks else ""
        if not known:
            return f"{what}{hint}" if hint else f"{what}, and no other"
        near = known if len(known) <= FEW else nearest(name, known)
        return f"{what}{hint}; it has {', '.join(near)}{'' if near == known else ', ...'}"

    @property
    def _key(self) -> str:
        return derived(self._nodes.access.secret, "secrets", self._paths.name)

    def _read(self, names: Iterable[str]) -> dict[str, StoredSecret]:
        return self._nodes.records(StoredSecret, {n: self._paths.user_secret(n) for n in names})

    def _unsealed(self, name: str, stored: StoredSecret) -> bytes:
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

    def _event(self, reason: str) -> ClusterEvent:
        return self._events.new(ClusterEventKind.SECRET, reason)


# ------------------------------------------------------------
# Read and change the settings of a cluster: its policy and time limits.


class ClusterSettings(ClusterPart):
    def get(self) -> ClusterRecord:
        self._nodes.check_administrator("see the settings of the cluster")
        path = self._paths.cluster
        if (answer := self._nodes.read(get(path))[0]) is None:
            raise self._nodes.unknown()
        return record(ClusterRecord, (path, answer[0]))

    def change(self, change: Callable[[ClusterRecord], ClusterRecord]) -> ClusterRecord:
        self._nodes.check_administrator("change the settings of the cluster")
        path = self._paths.cluster

        def changed(values: Mapping[str, Values]) -> tuple[Mapping[str, Values], ClusterEvent]:
            before = values[path]
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
WakeOf = Callable[[str], Callable[[], None]]  # the `wake` of the reads of a job


class OptionalNodes(NamedTuple):
    secret: str | None  # of its runs; None before the first
    measured: MeasuredThroughput | None  # by former runs; None: nothing


class WatchedNodes(Generic[T]):
    """What was read of jobs, by name, until a node of a job changes."""

    def __init__(
        self, read: Callable[[Iterable[str], WakeOf | None], dict[str, T]], on_change: OnChange
    ) -> None:
        self._read = read
        self._changed = WorkQueue(on_change)
        self._kept: dict[str, T] = {}

    def of(self, names: Iterable[str]) -> dict[str, T]:
        known = set(names)
        self._changed.keep_only(known)
        due = known - self._kept.keys() | self._changed.take() & known
        with self._changed.put_back_on_error(due):
            new = self._read(due, self._changed.wake)
        kept = {name: one for name, one in self._kept.items() if name in known and name not in due}
        self._kept = kept | new
        return self._kept


class JobReader:
    """A reader of jobs that keeps what it has watched; one thread at a time calls `watched`."""

    def __init__(self, nodes: ClusterNodes, changed: Callable[[], None]) -> None:
        self.nodes = nodes
        self.paths = nodes.paths
        self._watched = WatchedNodes(self._read_jobs, changed)
        self._optional = WatchedNodes(self._read_optional, None)

    def read(self, names: Iterable[str]) -> tuple[JobView, ...]:
        return _in_order(self._read_jobs(names, None))

    def watched(self, names: Iterable[str]) -> tuple[JobView, ...]:
        return _in_order(self._watched.of(names))

    def _read_jobs(self, names: Iterable[str], wake_of: WakeOf | None) -> dict[str, JobView]:
        jobs = {}
        rest, p = sorted(names), self.paths
        for _ in range(PASSES):
            paths = [(p.manifest(name), p.wanted(name), p.life(name)) for name in rest]
            wakes = [None if wake_of is None else wake_of(name) for name in rest]
            reads = (
                get(path, wake) for three, wake in zip(paths, wakes, strict=True) for path in three
            )
            answers = in_threes(self.nodes.read(*reads))
            torn = []
            for name, three, answer in zip(rest, paths, answers, strict=True):
                if None in answer:
                    continue
                manifest, wanted, life = answer
                if not manifest[1].czxid == wanted[1].czxid == life[1].czxid:
                    torn.append(name)  # of two submissions: replaced while it was read
                    continue
                jobs[name] = JobView(
                    name,
                    order=manifest[1].czxid,
                    submitted_s=manifest[1].ctime / 1000.0,
                    manifest=record(JobManifest, (three[0], manifest[0])),
                    wanted=record(Wanted, (three[1], wanted[0])),
                    life=record(JobLifecycle, (three[2], life[0])),
                    life_version=life[1].version,
                )
            if not (rest := torn):
                break
        return jobs

    def secrets_and_measured(
        self, jobs: Iterable[str], watch: bool = True
    ) -> tuple[dict[str, str], dict[str, MeasuredThroughput]]:
        nodes = self._optional.of(jobs) if watch else self._read_optional(jobs, None)
        return (
            {name: one.secret for name, one in nodes.items() if one.secret is not None},
            {name: one.measured for name, one in nodes.items() if one.measured is not None},
        )

    def _read_optional(
        self, jobs: Iterable[str], wake_of: WakeOf | None
    ) -> dict[str, OptionalNodes]:
        names, p = sorted(jobs), self.paths
        wakes = {name: None if wake_of is None else wake_of(name) for name in names}
        answers = self.nodes.read(*(children(p.job(name), wakes[name]) for name in names))
        there = {
            name: nodes for name, nodes in zip(names, answers, strict=True) if nodes is not None
        }
        paths = {
            path: name
            for name, nodes in there.items()
            for node, path in (("secret", p.secret(name)), ("measured", p.measured(name)))
            if node in nodes
        }
        answers = self.nodes.read(*(get(path, wakes[name]) for path, name in paths.items()))
        values = {path: content(path, one) for path, one in zip(paths, answers, strict=True)}
        found = {}
        for name in there:
            secret, measured = values.get(p.secret(name)), values.get(p.measured(name))
            found[name] = OptionalNodes(
                str(secret["secret"]) if secret else None,
                MeasuredThroughput.from_json(measured) if measured else None,
            )
        return found


def in_threes(answers: Sequence[Any]) -> Iterator[tuple[Any, Any, Any]]:
    return zip(answers[::3], answers[1::3], answers[2::3], strict=True)


def _in_order(jobs: Mapping[str, JobView]) -> tuple[JobView, ...]:
    return tuple(sorted(jobs.values(), key=lambda job: job.order))


# ------------------------------------------------------------
# Read the hosts of a cluster, and drain them.


class ClusterHosts(ClusterPart):
    def list(self) -> tuple[HostView, ...]:
        return self.read(self._nodes.names(self._paths.hosts))

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

        names = self._nodes.names(self._paths.hosts)
        there = self._nodes.read(exists(path))[0]
        if host not in names:
            near = f"; the nearest of {len(names)}: {', '.join(nearest(host, sorted(names)))}"
            if len(names) <= FEW:
                near = f"; its hosts: {', '.join(sorted(names))}"
            if not names:
                near = "; start one with `edl host`"
            raise UsageError(f"{self._nodes.what} has no host named {host!r}{near}")
        view = next(iter(self.read([host])), HostView(host))
        forgets = not drained and bool(view.assigned.failures)
        if (there is not None) is drained and not forgets:
            return False
        try:
            self._events.transact(f"drain {host}", event, build)
        except Refused as refused:
            if isinstance(refused.error, BadVersionError):  # the leader has just planned
                return self.set_drained(host, drained)
            if isinstance(refused.error, NodeExistsError | NoNodeError):
                return False  # another process was faster
            raise CoordinationError(f"{path} could not be written: {refused.error}") from refused
        return True


# ------------------------------------------------------------
# Read the jobs of a cluster, and change what users want of them.
#
# `submission` submits jobs, and `writer` writes their states and removes them.


def check_submission(job: JobView, submitted_s: float) -> None:
    if job.submitted_s != submitted_s:
        raise UnknownJob(job.name, (job.name,))


class ClusterJobs(ClusterPart):
    def __init__(self, nodes: ClusterNodes, events: ClusterEvents, reader: JobReader) -> None:
        super().__init__(nodes, events)
        self._reader = reader

    # --- reading

    def list(self) -> tuple[JobView, ...]:
        return self._reader.read(self._nodes.names(self._paths.jobs))

    def get(self, name: str) -> JobView:
        found = self._reader.read([name])
        if not found:
            raise self._nodes.unknown_job(name)
        return found[0]

    def has(self, name: str) -> bool:
        return self._nodes.read(exists(self._paths.manifest(name)))[0] is not None

    def full_name(self, job: str) -> str:
        return job

    def log_access(self, job: str) -> Access:
        return self._nodes.access

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

        def changed(values: Mapping[str, Values]) -> tuple[Mapping[str, Values], ClusterEvent]:
            before, state = (
                Wanted.from_json(values[wanted]),
                JobLifecycle.from_json(values.get(life, {})),
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


MAX_NAMED = 1000  # secrets of a cluster, and as many queues


class ClusterQueues(ClusterPart):
    def __init__(self, nodes: ClusterNodes, events: ClusterEvents, jobs: ClusterJobs) -> None:
        super().__init__(nodes, events)
        self._jobs = jobs

    def records(self) -> dict[str, QueueRecord]:
        """Return the queues of the cluster by name, sorted; empty if it has none."""
        self._nodes.check_administrator("see the queues of the cluster")
        return self.read(self._nodes.read(children(self._paths.queues))[0] or ())

    def read(self, names: Iterable[str], wake: OnChange = None) -> dict[str, QueueRecord]:
        paths = {name: self._paths.queue(name) for name in sorted(names)}
        return self._nodes.records(QueueRecord, paths, wake)

    def change(self, name: str, change: Callable[[QueueRecord], QueueRecord]) -> QueueRecord:
        path = self._paths.queue(name)
        after = QueueRecord()

        def changed(answer: Any) -> tuple[QueueRecord, ClusterEvent] | None:
            nonlocal after
            before = QueueRecord() if answer is None else record(QueueRecord, (path, answer[0]))
            after = change(before)
            check_queue(name, after)
            if answer is not None and after == before:
                return None
            event = self._events.new(ClusterEventKind.QUEUE, f"queue {name}: {after}")
            return replace(after, set_s=time.time(), by=event.by), event

        self._events.put(path, "queue", changed)
        return after

    def delete(self, name: str) -> None:
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
        if name not in queues or not self._events.remove(path, "queue", event):
            raise UsageError(unknown_queue(self._nodes.what, name, self.records()))


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


class ClusterTenants(ClusterPart):
    def __init__(
        self,
        nodes: ClusterNodes,
        events: ClusterEvents,
        jobs: ClusterJobs,
        queues: ClusterQueues,
        secrets: ClusterSecrets,
    ) -> None:
        super().__init__(nodes, events)
        self._jobs = jobs
        self._queues = queues
        self._secrets = secrets

    def create(self, name: str) -> str:
        self._nodes.check_session()
        if not is_tenant_name(name):
            raise UsageError(f"{name!r} cannot be the name of a tenant: {SHOWN}")
        p, access, secret = self._paths, self._nodes.access, new_secret()
        jobs, others = self._nodes.names(p.jobs), self._nodes.names(p.tenants)
        if len(others) >= MAX_TENANTS:
            raise UsageError(f"{self._nodes.what} has {MAX_TENANTS} tenants, and may have no more")
        if taken := sorted(job for job in jobs if tenant_of(job, {name})):
            raise UsageError(
                f"{some(taken)} would belong to tenant {name}; delete them, or choose another name"
            )
        identity = str(tenant_access(p.name, name, secret).acl[0].id.id)
        key = signing_key(p.name, name, secret).encode()
        sealed = seal(self._key, name, key, os.urandom(NONCE_BYTES))
        event = self._events.new(ClusterEventKind.TENANT, f"tenant {name} was made")
        sealed_key = base64.b64encode(sealed).decode()
        stored = TenantRecord(identity, sealed_key, created_s=time.time(), by=event.by)
        reads, creates = readable(access, identity), readable(access, identity, create=True)

        def build(transaction: TransactionRequest) -> None:
            transaction.create(p.tenant(name), encode(stored.to_json()))
            inbox = encode({"identity": str(access.acl[0].id.id)})
            transaction.create(p.inbox(name), inbox, acl=creates)
            for path in (p.responses(name), p.tenant_jobs(name), p.tenant_view(name)):
                transaction.create(path, b"", acl=reads)

        try:
            self._events.transact(f"make tenant {name}", event, build)
        except Refused:
            taken_by = self._all().get(name)
            if taken_by is not None and taken_by.revoked:
                raise UsageError(
                    f"{name!r} was a tenant of {self._nodes.what}, and is removed, but its inbox "
                    "has nodes that cannot be removed; choose another name"
                ) from None
            if taken_by is not None:
                raise UsageError(
                    f"{self._nodes.what} has a tenant {name} already; `edl tenant delete {name}` "
                    "and make it anew, if its secret is lost"
                ) from None
            raise
        return secret_word(name, secret)

    def names(self) -> tuple[str, ...]:
        return tuple(self.records())

    def records(self, wake: OnChange = None) -> dict[str, TenantRecord]:
        """Return all tenants by name; `wake` is called when one is made or removed."""
        return {name: about for name, about in self._all(wake).items() if not about.revoked}

    def _all(self, wake: OnChange = None) -> dict[str, TenantRecord]:
        names = sorted(self._nodes.read(children(self._paths.tenants, wake))[0] or ())
        paths = {name: self._paths.tenant(name) for name in names}
        return self._nodes.records(TenantRecord, paths, wake)

    def key(self, name: str, stored: TenantRecord) -> str | None:
        key = unseal(self._key, name, base64.b64decode(stored.sealed))
        # None: it was sealed with another secret of the cluster.
        return None if key is None else key.decode()

    def owner(self, name: str, stored: TenantRecord) -> JobOwner:
        return JobOwner(name, readable(self._nodes.access, stored.identity))

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
            p, revoked = self._paths, replace(found[name], revoked=True)
            event = self._events.new(ClusterEventKind.TENANT, f"tenant {name} was removed")

            def build(transaction: TransactionRequest) -> None:
                transaction.set_data(p.tenant(name), encode(revoked.to_json()))
                for path in (p.tenant_jobs(name), p.responses(name), p.tenant_view(name)):
                    transaction.delete(path)  # without them no job of it can be submitted any more

            try:
                self._events.transact(f"remove tenant {name}", event, build)
            except Refused as refused:
                raise CoordinationError(
                    f"tenant {name} was not removed: {refused}; try again"
                ) from refused
        try:
            return self._clean(name)
        except NoNodeError:  # another process was faster
            return 0

    def _clean(self, name: str) -> int:
        inbox, access = self._paths.inbox(name), self._nodes.access
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
    def _key(self) -> str:
        return derived(self._nodes.access.secret, "tenants", self._paths.name)


@dataclass(frozen=True)
class ClusterSnapshot:
    settings: ClusterRecord
    allocation: AllocationRecord  # the default before the first decision
    allocation_version: int  # which a write of it must name
    jobs: tuple[JobView, ...]  # in the order of submission
    hosts: tuple[HostView, ...]  # by name, each with the version of its `assigned`
    leader: Mapping[str, Any]  # of the newest term, with its `term`; empty before the first
    secrets: frozenset[str] = frozenset()  # the names
    queues: Mapping[str, QueueRecord] = field(default_factory=dict)  # by name
    tenants: frozenset[str] = frozenset()  # the names


class ClusterStore:
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
