"""Read the nodes of a job or a cluster together, and write them without overwriting others."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import PurePosixPath
from typing import Any, Generic, Protocol, TypeVar

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import NodeExistsError, NoNodeError
from kazoo.protocol.serialization import Create

from edl import config
from edl.errors import (
    AccessDenied,
    ConfigError,
    CoordinationError,
    EdlError,
    JobExists,
    NotRemovable,
    PartlyRemoved,
    UnknownJob,
    UsageError,
    some,
)
from edl.http.client import answering
from edl.record import Record
from edl.records import Assigned, Desired, Generation, Job, JobPolicy
from edl.text import counted, is_name
from edl.zookeeper.access import SHARED, Access, stored
from edl.zookeeper.paths import JOBS, JobPaths
from edl.zookeeper.reads import OnChange, acl, children, decode, encode, exists, get
from edl.zookeeper.session import CHANCE, Refused, Session

# ------------------------------------------------------------
# Create the nodes that all jobs or clusters share (`ensure_shared`), also in a new chroot.
#
# A chroot is the optional root in the address of ZooKeeper, "host:port/chroot"; it may have parts.


def ensure_shared(session: Session, what: str, path: str) -> None:
    """Create the node at `path`, the nodes above it, and the chroot, as far as they are missing."""
    # A ZooKeeper that has lost its data has no chroot either.
    ensure = partial(KazooClient.ensure_path_async, path=path, acl=SHARED)
    chroot = session.client.chroot
    try:
        session.call(what, ensure, repeat=True)
    except NoNodeError:  # of a chroot, kazoo creates the last node only
        for node in reversed(PurePosixPath(chroot).parents[:-1]):
            with suppress(NodeExistsError, NoNodeError, AccessDenied):
                session.call(what, partial(_create_outside, node=str(node)), repeat=True)
        try:
            session.call(what, ensure, repeat=True)
        except NoNodeError as error:
            raise CoordinationError(
                f"cannot {what}: ZooKeeper at {session.hosts} has no node {chroot}, and it could "
                "not be created; create it, or give another address by --zookeeper"
            ) from error


def _create_outside(client: KazooClient, node: str) -> Any:
    """Send the creation of `node`, whose path begins above the chroot of `client`."""
    pending = client.handler.async_result()
    client._call(Create(node, b"", SHARED, 0), pending)
    return pending


# ------------------------------------------------------------
# Read which nodes a job has in ZooKeeper: all of them, or of an untrusted job a bounded part.
#
# Whoever knows the secret of a job may have created any nodes below the job's own: millions, in
# wide or deep trees. `some_nodes` reads a part of them that can be removed, at a bounded cost.

READ_AT_ONCE = 100  # nodes that are read together: a time limit must be enough, though all are busy
MOST_CHILDREN = 200_000  # of a node whose children are read
MOST_NAMES = 300_000  # of children, in all answers to one call
MOST_BYTES = 2_000_000  # of the paths in all requests of one call
REQUEST_BYTES = 400  # that a request counts beside its path: so they are 5,000 at most
SHARE = 8  # nodes that are looked at together take up to 1/8 of the bytes that are left


@dataclass(frozen=True)
class Tree:
    """The nodes of a job that a bounded read has found."""

    # children come before their parents, and no node has a child that is not in the list
    nodes: list[str]
    # why nodes are missing, as the end of a sentence about a node below the job's; empty: none is
    unread: str


def all_nodes(session: Session, root: str) -> list[str]:
    found: list[str] = []
    unread = [root]
    while unread:
        batch, unread = unread[-READ_AT_ONCE:], unread[:-READ_AT_ONCE]
        answers = session.read_all("read a job", [children(path) for path in batch])
        for path, names in zip(batch, answers, strict=True):
            if names is not None:
                found.append(path)
                unread += [f"{path}/{name}" for name in sorted(names)]
    return found[::-1]


def some_nodes(session: Session, root: str, kept: Collection[str]) -> Tree:
    """Read the nodes from `root` down, at a bounded cost, and return those that can be removed."""
    # Down one branch, at each node to the child with the fewest children, until a node is found
    # that can be removed, so that some are found; then several branches together.
    read = _BoundedRead(session, frozenset(kept))
    read.run(root)
    return read.tree(root)


class _BoundedRead:
    """One read of a part of a job's nodes, depth first; `exists` counts children before a read."""

    def __init__(self, session: Session, kept: frozenset[str]) -> None:
        self._session = session
        self._kept = kept
        self._found: list[str] = []  # the nodes that exist, parents before their children
        self._removable = 0  # how many nodes without children were found that are not kept
        self._unseen: list[tuple[str, list[str]]] = []  # parents, and children not looked at
        self._inner: list[tuple[str, int]] = []  # nodes with so many children, whose names are next
        self._skipped: list[str] = []  # nodes whose children are not read
        self._why = ""  # the last of them, if no later read can do it
        self._names, self._bytes = MOST_NAMES, MOST_BYTES  # that are left

    def run(self, root: str) -> None:
        parent, _, name = root.rpartition("/")
        self._unseen.append((parent, [name]))
        while self._inner or self._unseen:
            parents = self._read_names()
            if not self._see(parents or 1) and not self._inner:
                return

    def tree(self, root: str) -> Tree:
        """Return what was found below `root`, without nodes of which a descendant is not known."""
        unread = [*self._skipped, *(path for path, _ in self._inner)]
        unread += [parent for parent, names in self._unseen if names]
        above: set[str] = set()
        for path in unread:
            while path not in above and path.startswith(root):
                above.add(path)
                path = path.rpartition("/")[0]
        nodes = [path for path in reversed(self._found) if path not in above]
        bounds = f"{MOST_NAMES} names and {MOST_BYTES} bytes of paths"
        too_deep = f"is nested too deeply: nothing that has no children is among the first {bounds}"
        return Tree(nodes, (self._why or too_deep) if unread else "")

    def _read_names(self) -> int:
        # One node until one was found that can be removed: else a few chains would use up what may
        # be read before one of them ends.
        batch: list[str] = []
        while self._inner and len(batch) < min(1 + self._removable, READ_AT_ONCE):
            path, count = self._inner.pop()
            if count > MOST_CHILDREN:
                self._why = f"has {count} children, more than the {MOST_CHILDREN} that are read"
            if count > min(self._names, MOST_CHILDREN) or not self._pays(path):
                self._skipped.append(path)
            else:
                self._names -= count
                batch.append(path)
        if not batch:
            return 0
        answers = self._session.read_open("read a job", [children(path) for path in batch])
        closed = [path for path, names in zip(batch, answers, strict=True) if names is None]
        read = [
            (path, sorted(names, reverse=True))
            for path, names in zip(batch, answers, strict=True)
            if names
        ]
        self._unseen += read
        if closed:  # their names could not be read; some may be gone now
            stats = self._session.read_all("read a job", [exists(path) for path in closed])
            if there := [path for path, stat in zip(closed, stats, strict=True) if stat]:
                self._skipped += there
                self._why = "has an ACL by which the job's secret does not open it"
        return len(read)

    def _see(self, parents: int) -> bool:
        paths = self._take(parents)
        if not paths:
            return False
        stats = self._session.read_all("read a job", [exists(path) for path in paths])
        seen = [(p, stat.numChildren) for p, stat in zip(paths, stats, strict=True) if stat]
        self._found += [path for path, _ in seen]
        self._removable += sum(not count and path not in self._kept for path, count in seen)
        inner = [(path, count) for path, count in seen if count]
        self._inner += sorted(inner, key=lambda one: one[1], reverse=True)  # the last is read next
        return True

    def _take(self, parents: int) -> list[str]:
        # Only 1/8 of the bytes that are left, so that much is left for what is below.
        least = self._bytes - self._bytes // SHARE
        taken: list[str] = []
        for _ in range(min(parents, len(self._unseen))):
            parent, names = self._unseen.pop()
            while names and len(taken) < READ_AT_ONCE and (self._bytes > least or not taken):
                path = f"{parent}/{names[-1]}"
                if not self._pays(path):
                    break
                taken.append(path)
                names.pop()
            if names:
                self._unseen.append((parent, names))
                break
        return taken

    def _pays(self, path: str) -> bool:
        """Subtract a request about `path` from what may be read; False: it is too much."""
        size = len(path.encode()) + REQUEST_BYTES
        if size > self._bytes:
            return False
        self._bytes -= size
        return True


# ------------------------------------------------------------
# Create, replace, list and remove jobs (their nodes in ZooKeeper; processes are not touched).
#
# The creation of a job is one transaction, as is its removal by `delete_ended`, except that events,
# requests and evictions are removed before, and, if the rest is too large, more of it. Of a job
# whose code is not trusted, a call reads and removes a bounded part; the next call goes on
# (`job_tree`).
#
# A replacement must never touch a job that another process has meanwhile started under the same
# name. So every start of a job has an identity, the node `run/<token>`. A transaction that removes
# nodes of one start checks that this start is still the current one, except in `delete_job`.
#
# Only a session that knows the job's secret can read or write its nodes (see `access`); any session
# can list the names of the jobs.

ATTEMPTS = 20  # an attempt fails only if another process changed the same job meanwhile
FEW_ATTEMPTS = 2  # of the leader of a cluster, which tries again in its next turn
ASK_TIMEOUT_S = 1.0  # to ask the ports of a ring without members in ZooKeeper
CHUNK = 500  # deletions in one transaction
CHUNK_BYTES = 500_000  # of them; ZooKeeper ends the connection of a client that sends 1 MB
DELETION_BYTES = 17  # of a deletion, beside its path


@dataclass(frozen=True)
class _Leftovers:
    """The nodes that a dead or ended job still has in ZooKeeper, as far as they were read."""

    tree: Tree  # its nodes that were read and can be removed; empty without a job
    run_node: str | None  # `run/<token>`; None: it has none

    @property
    def nodes(self) -> list[str]:
        return self.tree.nodes

    @property
    def whole(self) -> bool:
        return not self.tree.unread

    @property
    def fit(self) -> bool:
        """Whether all nodes of the job are known and can be removed in one transaction."""
        return self.whole and _fits(self.nodes)


def create_job(
    session: Session,
    paths: JobPaths,
    job: Job,
    assigned: Assigned,
    policy: JobPolicy,
    run: str | None = None,
    batch: int = 0,
    trusted: bool = True,
) -> str:
    """Create the job's nodes in one transaction, and return the token of this start of the job."""
    if session.access is None or session.access.job != paths.name:
        raise CoordinationError(f"job {paths.name} can only be created with a secret of its own")
    # The code of a job that is not trusted may have written any addresses and very many nodes: no
    # port is asked then, and its nodes may be removed part by part (PartlyRemoved).
    for _ in range(_attempts(trusted)):
        try:
            runs, root = session.read_all("read a job", [children(paths.run), get(paths.root)])
            if run is not None and _token(paths, runs) == run:
                # This start exists already, running or ended.
                return run
            old = _Leftovers(Tree([], ""), None)
            if root is not None:
                old = _living_or_leftovers(session, paths, trusted)
        except AccessDenied:
            raise AccessDenied(
                paths.name,
                f"the name {paths.name!r} is taken by a job that has another secret (another "
                "user's, or one started on another host); choose another --job, or give that "
                "job's secret by EDL_SECRET",
            ) from None
        token = run or uuid.uuid4().hex
        try:
            if root is not None:
                _thin_out(session, paths, old)
                old = _living_or_leftovers(session, paths, trusted)
                if not old.fit:
                    continue
            hosts = {} if assigned.by_slot else assigned.hosts
            sizes = Desired(hosts, reason="the job starts", at_s=job.created, batch=batch)
            build = partial(_replace, paths, old.nodes, token, job, sizes, assigned, policy)
            session.transact(f"create job {paths.name}", build)
        except Refused as refused:
            if isinstance(refused.error, NoNodeError):  # it may be the first job of all
                ensure_shared(session, "create a job", JOBS)
            continue  # or somebody was faster, or a node of the old job appeared: look again
        return token
    raise CoordinationError(
        f"job {paths.name} could not be created: it changed {_attempts(trusted)} times"
    )


def delete_job(session: Session, paths: JobPaths) -> None:
    for _ in range(ATTEMPTS):
        old = all_nodes(session, paths.root)
        if not old:
            return
        try:
            for chunk in _chunks(old):
                session.transact(f"delete job {paths.name}", partial(delete_nodes, nodes=chunk))
        except Refused:
            continue
        return
    raise CoordinationError(
        f"job {paths.name} could not be removed: its processes keep writing; stop them first"
    )


def delete_ended(session: Session, paths: JobPaths, trusted: bool = True) -> bool:
    """Remove all nodes of the job at `paths` if it has ended or all its processes are dead."""
    for _ in range(_attempts(trusted)):
        old = _living_or_leftovers(session, paths, trusted)
        if old.whole and not old.nodes:
            return False
        if left := sorted(name for _, name in _registered(session, paths, trusted)):
            raise UsageError(
                f"job {paths.name} has ended, and {some(left)} has not left it yet; try again in "
                "a moment"
            )
        try:
            _thin_out(session, paths, old)
            rest = _living_or_leftovers(session, paths, trusted)
            if not rest.fit:
                continue
            build = partial(delete_nodes, nodes=rest.nodes, check=old.run_node)
            session.transact(f"delete job {paths.name}", build)
        except Refused:
            continue  # it was started again, or changed: look again
        return True
    raise CoordinationError(
        f"job {paths.name} could not be deleted: it changed {_attempts(trusted)} times"
    )


def _attempts(trusted: bool) -> int:
    return ATTEMPTS if trusted else FEW_ATTEMPTS


def job_names(session: Session) -> tuple[str, ...]:
    names = session.read_all("list jobs", [children(JOBS)])[0] or ()
    return tuple(sorted(name for name in names if is_name(name)))


def unlock(session: Session, known: Sequence[Access]) -> dict[str, Access]:
    # Only a process that knows the secret can have given the root its ACL. A job that can be read
    # may be anybody's, and `edl join` would run its commands here.
    session.identify(*known)
    return _opened(session, known)


def _opened(session: Session, known: Sequence[Access]) -> dict[str, Access]:
    names = list(dict.fromkeys(access.job for access in known))
    answers = session.read_open("read ACLs", [acl(JobPaths(name).root) for name in names])
    found = {name: answer[0] for name, answer in zip(names, answers, strict=True) if answer}
    return {one.job: one for one in known if one.job in found and one.opens(found[one.job])}


def list_jobs(
    session: Session,
    names: Iterable[str] | None = None,
    unreadable: Callable[[str, str], None] | None = None,
) -> tuple[Job, ...]:
    wanted = sorted(job_names(session) if names is None else names)
    paths = [JobPaths(name).job for name in wanted]
    answers = session.read_open("list jobs", [get(path) for path in paths])
    found = []
    for name, path, answer in zip(wanted, paths, answers, strict=True):
        if answer is None:
            continue
        try:
            found.append(Job.from_json(decode(path, answer[0])))
        except CoordinationError as error:
            if unreadable is not None:
                unreadable(name, str(error))
    return tuple(found)


def unknown_job(session: Session, paths: JobPaths) -> UnknownJob:
    names = set(job_names(session))
    own = {paths.name, *_opened(session, session.identities)} & names
    if names - own:
        with suppress(ConfigError, OSError):  # a worker needs no home directory
            own |= stored(config.state_dir(), names)
    return UnknownJob(paths.name, tuple(sorted(own)))


def current_run(session: Session, paths: JobPaths) -> str | None:
    return _token(paths, session.read_all("read a job", [children(paths.run)])[0])


def _token(paths: JobPaths, names: Iterable[str] | None) -> str | None:
    tokens = [child for child in names or () if f"{paths.run}/{child}" != paths.creator]
    return tokens[0] if tokens else None


def _living_or_leftovers(session: Session, paths: JobPaths, trusted: bool) -> _Leftovers:
    # If another process replaces the job meanwhile, no node of the new job gets removed: either the
    # new job is seen to live, or the caller's transaction fails, because it checks the token of the
    # old start.
    # The read of the root is refused if another has it; its children are read only if there are.
    runs, _ = session.read_all("read a job", [children(paths.run), get(paths.root)])
    run = _token(paths, runs)
    run_node = f"{paths.run}/{run}" if run is not None else None
    if trusted:
        tree = Tree(all_nodes(session, paths.root), "")
    else:
        tree = some_nodes(session, paths.root, {*paths.fixed, run_node or paths.run})
    reads = [get(path) for path in (paths.job, paths.creator, paths.generation)]
    answer, creator, generation = session.read_all("read a job", reads)
    registered = _registered(session, paths, trusted)
    if answer is not None:
        old = _stored_job(paths, answer[0], trusted)
        if not old.state.over and (creator or registered):
            alive = [f"{kind}{name}" for kind, name in registered]
            starts = ["its start is under way"]
            raise JobExists(paths.name, alive or starts, session.granted_s)
        if not old.state.over and old.reserved:
            raise JobExists(paths.name, ["no process of it lives, but its creator counts on it"])
        if trusted and not old.state.over and generation and generation[0]:
            # Sessions may end under workers that train on, and are soon back.
            ring = Generation.from_json(decode(paths.generation, generation[0])).members
            if run is not None and (training := answering(ring, run, ASK_TIMEOUT_S)):
                raise JobExists(paths.name, [f"w{n} trains" for n in sorted(training)])
    return _Leftovers(tree, run_node)


def _stored_job(paths: JobPaths, data: bytes, trusted: bool) -> Job:
    try:
        return Job.from_json(decode(paths.job, data))
    except CoordinationError as error:
        if trusted:
            raise
        raise NotRemovable(paths.name, paths.root, f"is no record of a job: {error}") from error


def _registered(session: Session, paths: JobPaths, trusted: bool) -> list[tuple[str, str]]:
    kinds = {paths.hosts: "host ", paths.slots: "slot ", paths.members: "w"}
    if trusted:
        found = session.read_all("read a job", [children(parent) for parent in kinds])
        named = zip(kinds.values(), found, strict=True)
        return [(kind, name) for kind, names in named for name in sorted(names or ())]
    # The nodes may be very many.
    stats = session.read_all("read a job", [exists(parent) for parent in kinds])
    return [
        ("", f"{counted(stat.numChildren, 'node')} in {parent}")
        for parent, stat in zip(kinds, stats, strict=True)
        if stat is not None and stat.numChildren
    ]


def _thin_out(session: Session, paths: JobPaths, old: _Leftovers) -> None:
    if long := next((path for path in old.nodes if _size(path) > CHUNK_BYTES), None):
        why = f"has too long a path to be removed, {long[:80]}..."
        raise NotRemovable(paths.name, paths.root, why)
    # Their number is not bounded; the rest fits into one transaction, unless the job's code has
    # written other nodes.
    many = tuple(f"{parent}/" for parent in (paths.events, paths.requests, paths.evicted))
    nodes = [path for path in old.nodes if path.startswith(many)]
    if not old.whole or not _fits(path for path in old.nodes if not path.startswith(many)):
        kept = {*paths.fixed, old.run_node}
        nodes = [path for path in old.nodes if path not in kept]
    if not old.whole and not nodes:
        raise NotRemovable(paths.name, paths.root, old.tree.unread)
    for chunk in _chunks(nodes):
        build = partial(delete_nodes, nodes=chunk, check=old.run_node)
        session.transact(f"replace job {paths.name}", build)
    if not old.whole:
        raise PartlyRemoved(paths.name)


def _replace(
    paths: JobPaths,
    old: list[str],
    token: str,
    job: Job,
    desired: Desired,
    assigned: Assigned,
    policy: JobPolicy,
    transaction: TransactionRequest,
) -> None:
    delete_nodes(transaction, old)
    contents = {
        paths.job: encode(job.to_json()),
        paths.desired: encode(desired.to_json()),
        paths.assigned: encode(assigned.to_json()),
        paths.policy: encode(policy.to_json()),
    }
    create_nodes(transaction, paths, token, contents)
    transaction.create(paths.creator, b"", ephemeral=True)


def create_nodes(
    transaction: TransactionRequest, paths: JobPaths, token: str, contents: Mapping[str, bytes]
) -> None:
    for path in paths.fixed:
        transaction.create(path, contents.get(path, b""))
    transaction.create(f"{paths.run}/{token}", b"")


def delete_nodes(
    transaction: TransactionRequest, nodes: Iterable[str], check: str | None = None
) -> None:
    if check is not None:
        transaction.check(check, -1)
    for path in nodes:
        transaction.delete(path)


def _fits(nodes: Iterable[str]) -> bool:
    return len(_chunks(nodes)) <= 1


def _chunks(nodes: Iterable[str]) -> list[list[str]]:
    chunks: list[list[str]] = []
    room = 0
    for path in nodes:
        size = _size(path)
        if size > CHUNK_BYTES:
            raise CoordinationError(f"{path[:80]}... is too long a path to be removed")
        if not chunks or size > room or len(chunks[-1]) == CHUNK:
            chunks.append([])
            room = CHUNK_BYTES
        chunks[-1].append(path)
        room -= size
    return chunks


def _size(path: str) -> int:
    return len(path.encode()) + DELETION_BYTES


PAUSE_S, PAUSE_MAX_S = 0.002, 0.2  # random pause between attempts; its limit doubles each time
Values = Mapping[str, Any]  # the JSON object in a node
Node = tuple[str, bytes]  # path and data
PARSED = 8192  # nodes whose parsed records are cached, so that only changed ones are parsed
R = TypeVar("R", bound=Record)


class NodePaths(Protocol):
    events: str

    def event(self, number: int) -> str:
        """Return the path of the event node with the sequence number `number`."""


P = TypeVar("P", bound=NodePaths)


class Nodes(ABC, Generic[P]):
    """Access to the nodes of one job, or of one cluster, through one session."""

    def __init__(self, session: Session, paths: P, what: str) -> None:
        self.session = session
        self.paths = paths
        self.what = what

    @abstractmethod
    def unknown(self) -> EdlError:
        """Return the error that the job or cluster does not exist, for the caller to raise."""

    @property
    def fence(self) -> str | None:
        """The path of a node without which `change_together` writes nothing; None: no node."""
        return None

    def transact(self, what: str, build: Callable[[TransactionRequest], None]) -> list[Any]:
        return self.session.transact(what, build)

    def read(self, *issues: Any) -> list[Any]:
        """Send all reads together; return their answers in order, None for a missing node."""
        return self.session.read_all(f"read {self.what}", issues)

    def existing(self, path: str) -> Any:
        """Return the answer about a node without which there is no such job or cluster."""
        answer = self.read(get(path))[0]
        if answer is None:
            raise self.unknown()
        return answer

    def read_groups(self, *groups: Sequence[str], wake: OnChange = None) -> list[list[Node]]:
        answers = iter(self.read(*(get(path, wake) for group in groups for path in group)))
        found = [[(path, next(answers)) for path in group] for group in groups]
        return [[(path, answer[0]) for path, answer in group if answer] for group in found]

    def compare_and_set(
        self, path: str, change: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> dict[str, Any]:
        def alone(found: Mapping[str, Values]) -> tuple[Mapping[str, Values], None]:
            return {path: change(dict(found[path]))}, None

        return dict(self.change_together((path,), alone)[path])

    def change_together(
        self,
        paths: Sequence[str],
        change: Callable[[Mapping[str, Values]], tuple[Mapping[str, Values], Record | None]],
    ) -> Mapping[str, Values]:
        """Change nodes and append an event, in one transaction, unless no value changes."""
        for attempt in range(ATTEMPTS):
            if attempt:  # without pauses two frequent writers would collide each time
                time.sleep(CHANCE.uniform(0.0, min(PAUSE_MAX_S, PAUSE_S * 2**attempt)))
            answers = zip(paths, self.read(*map(get, paths)), strict=True)
            there = {path: answer for path, answer in answers if answer is not None}
            if paths[0] not in there:
                raise self.unknown()
            old = {path: decode(path, data) for path, (data, _) in there.items()}
            new, event = change(old)
            writes = [
                (path, encode(values), there[path][1].version)
                for path, values in new.items()
                if values != old[path]
            ]
            if not writes:
                return old
            if self.try_write(writes, event):
                return {**old, **new}
        raise self.changed_too_often(paths[0])

    def try_write(self, writes: Sequence[tuple[str, bytes, int]], event: Record | None) -> bool:
        """Write several nodes and append an event, in one transaction, or do nothing."""
        build = partial(self._write, writes=writes, event=event)
        try:
            self.transact(f"write {writes[0][0]}", build)
        except Refused as refused:
            if self.fence is not None and refused.is_missing(0):
                raise self.unknown() from None
            return False  # another writer was faster
        return True

    def changed_too_often(self, path: str) -> CoordinationError:
        return CoordinationError(f"{path} was changed by others {ATTEMPTS} times; try again")

    def _write(
        self,
        transaction: TransactionRequest,
        writes: Sequence[tuple[str, bytes, int]],
        event: Record | None,
    ) -> None:
        if self.fence is not None:
            transaction.check(self.fence, -1)
        for path, data, version in writes:
            transaction.set_data(path, data, version)
        if event is not None:
            transaction.create(f"{self.paths.events}/e-", encode(event.to_json()), sequence=True)


class JobNodes(Nodes[JobPaths]):
    def __init__(self, session: Session, job_name: str) -> None:
        super().__init__(session, JobPaths(job_name), f"job {job_name}")
        self._run: str | None = None

    @property
    def run(self) -> str:
        if self._run is None:
            self._run = current_run(self.session, self.paths)
        if self._run is None:
            raise self.unknown()
        return self._run

    @property
    def fence(self) -> str | None:
        """The node of the start that this process belongs to, which so writes into no later one."""
        return None if self._run is None else f"{self.paths.run}/{self._run}"

    def belong_to(self, run: str) -> None:
        self._run = run

    def unknown(self) -> UnknownJob:
        return unknown_job(self.session, self.paths)

    def put_ephemeral(
        self,
        path: str,
        record: Record,
        ours: Callable[[Mapping[str, Any]], bool],
        conditions: Callable[[], Mapping[str, int]] = dict,
    ) -> bool:
        """Write `record` into an ephemeral node, which ends with this session."""
        data = encode(record.to_json())
        for _ in range(ATTEMPTS):
            answer = self.read(get(path))[0]
            if answer is not None and not ours(decode(path, answer[0])):
                return False
            build = partial(self._put, path=path, data=data, old=answer, versions=conditions())
            try:
                self.session.transact(f"write {path}", build)
            except Refused as refused:
                if refused.is_missing(0):
                    raise self.unknown() from None
                continue  # it appeared, changed or vanished meanwhile
            return True
        raise self.changed_too_often(path)

    def _put(
        self,
        transaction: TransactionRequest,
        path: str,
        data: bytes,
        old: Any,
        versions: Mapping[str, int],
    ) -> None:
        transaction.check(f"{self.paths.run}/{self.run}", -1)
        for other, version in versions.items():
            transaction.check(other, version)
        # Set the node if this session has made it, and else replace it: it ends with its session.
        if old is not None and old[1].ephemeralOwner == self.session.session_id:
            transaction.set_data(path, data, old[1].version)
            return
        if old is not None:
            transaction.delete(path, old[1].version)
        transaction.create(path, data, ephemeral=True)


def content(path: str, answer: Any) -> dict[str, Any]:
    """Return the JSON object of the node at `path`; an empty one if there is no such node."""
    return {} if answer is None else decode(path, answer[0])


def first_of(path: str, answer: Any) -> int:
    """Return the number to add to the sequence numbers of the children of the node at `path`."""
    return int(content(path, answer).get("first", 0))


def record_or_none(kind: type[R], path: str, answer: Any) -> R | None:
    return record(kind, (path, answer[0])) if answer is not None and answer[0] else None


def record(kind: type[R], node: Node) -> R:
    found: R = _parsed(kind.from_json, node)
    return found


@lru_cache(PARSED)
def _parsed(parse: Callable[[Values], Any], node: Node) -> Any:
    return parse(decode(*node))
