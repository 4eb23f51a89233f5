"""Create, replace, list and remove jobs (their nodes in ZooKeeper; processes are not touched).

The creation of a job is one transaction, as is its removal by :func:`delete_ended`, except that
events, requests and evictions are removed before, and, if the rest is too large, more of it. Of a
job whose code is not trusted, a call reads and removes a bounded part; the next call goes on
(:mod:`edl.coordination.job_tree`).

A replacement must never touch a job that another process has meanwhile started under the same name.
So every start of a job has an identity, the node ``run/<token>``. A transaction that removes nodes
of one start checks that this start is still the current one, except in :func:`delete_job`.

Only a session that knows the job's secret can read or write its nodes (see ``access``); any session
can list the names of the jobs.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from kazoo.client import TransactionRequest
from kazoo.exceptions import NoNodeError

from edl import config
from edl.coordination.access import Access
from edl.coordination.job_tree import Tree, all_nodes, some_nodes
from edl.coordination.paths import JOBS, JobPaths
from edl.coordination.reads import acl, children, exists, get
from edl.coordination.secrets import stored
from edl.coordination.session import Refused, Session
from edl.coordination.shared_nodes import ensure_shared
from edl.coordination.wire import decode, encode
from edl.core.names import is_name
from edl.core.plural import counted
from edl.core.records import Assigned, Desired, Generation, Job, JobPolicy
from edl.errors import (
    AccessDenied,
    ConfigError,
    CoordinationError,
    JobExists,
    NotRemovable,
    PartlyRemoved,
    UnknownJob,
    UsageError,
    some,
)
from edl.http.client import answering

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
        """The paths of the nodes that can be removed, children before their parents."""
        return self.tree.nodes

    @property
    def whole(self) -> bool:
        """Whether these are all nodes of the job."""
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
    """Remove all nodes of the job at `paths`, alive or not; do nothing if there are none."""
    for _ in range(ATTEMPTS):
        old = all_nodes(session, paths.root)
        if not old:
            return
        try:
            for chunk in _chunks(old):
                session.transact(f"delete job {paths.name}", partial(_delete, nodes=chunk))
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
            build = partial(_delete, nodes=rest.nodes, check=old.run_node)
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
    """Return the names of all jobs, sorted, including jobs that this session cannot open."""
    names = session.read_all("list jobs", [children(JOBS)])[0] or ()
    return tuple(sorted(name for name in names if is_name(name)))


def unlock(session: Session, known: Sequence[Access]) -> dict[str, Access]:
    """Prove all secrets in `known` to ZooKeeper, and return the ones that open an existing job."""
    # Only a process that knows the secret can have given the root its ACL. A job that can be read
    # may be anybody's, and `edl join` would run its commands here.
    session.identify(*known)
    return _opened(session, known)


def _opened(session: Session, known: Sequence[Access]) -> dict[str, Access]:
    """Return those accesses in `known` that open an existing job, by the name of the job."""
    names = list(dict.fromkeys(access.job for access in known))
    answers = session.read_open("read ACLs", [acl(JobPaths(name).root) for name in names])
    found = {name: answer[0] for name, answer in zip(names, answers, strict=True) if answer}
    return {one.job: one for one in known if one.job in found and one.opens(found[one.job])}


def list_jobs(
    session: Session,
    names: Iterable[str] | None = None,
    unreadable: Callable[[str, str], None] | None = None,
) -> tuple[Job, ...]:
    """Read the record of each job in `names`, and return the records sorted by name."""
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
    """Return the error to raise for a job that does not exist; its text names jobs that do."""
    names = set(job_names(session))
    own = {paths.name, *_opened(session, session.identities)} & names
    if names - own:
        with suppress(ConfigError, OSError):  # a worker needs no home directory
            own |= stored(config.state_dir(), names)
    return UnknownJob(paths.name, tuple(sorted(own)))


def current_run(session: Session, paths: JobPaths) -> str | None:
    """Return the token that identifies the current start of a job, or None if there is no job."""
    return _token(paths, session.read_all("read a job", [children(paths.run)])[0])


def _token(paths: JobPaths, names: Iterable[str] | None) -> str | None:
    tokens = [child for child in names or () if f"{paths.run}/{child}" != paths.creator]
    return tokens[0] if tokens else None


def _living_or_leftovers(session: Session, paths: JobPaths, trusted: bool) -> _Leftovers:
    """Return what is left of a dead or ended job."""
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
    """Return (kind, name) of each process of a job that has a node in ZooKeeper, for messages."""
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
    """Remove the events, requests and evictions of an old job, in several transactions."""
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
        build = partial(_delete, nodes=chunk, check=old.run_node)
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
    """Add to `transaction` the removal of an old job and the creation of a new one."""
    _delete(transaction, old)
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
    """Add to `transaction` the creation of a job's fixed nodes and of its node `run/<token>`."""
    for path in paths.fixed:
        transaction.create(path, contents.get(path, b""))
    transaction.create(f"{paths.run}/{token}", b"")


def _delete(transaction: TransactionRequest, nodes: list[str], check: str | None = None) -> None:
    """Add to `transaction` the removal of the nodes at the paths `nodes`, in that order."""
    if check is not None:
        transaction.check(check, -1)
    for path in nodes:
        transaction.delete(path)


def _fits(nodes: Iterable[str]) -> bool:
    return len(_chunks(nodes)) <= 1


def _chunks(nodes: Iterable[str]) -> list[list[str]]:
    """Split the paths `nodes`, in order, into lists that can each be removed in a transaction."""
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
