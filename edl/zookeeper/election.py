"""Elect one leader among candidates, and fence the writes of a leader whose term is over.

A candidate makes an :class:`Election`, calls :meth:`Election.enter`, and then asks
:meth:`Election.leads` again and again; while it leads, it writes through the :class:`Leadership`
that this returns. The recipe works on two nodes that exist beforehand and that the caller names,
the election node and the leader node:

1. Each candidate creates an ephemeral sequential node below the election node. The candidate whose
   node has the lowest sequence number leads.
2. A term starts with one transaction. It checks that the candidate's own node exists, and writes
   the next term into the leader node. Terms grow strictly.
3. Each later write of that leader is a transaction, too. It checks that the candidate's own node
   still exists, and that the leader node has not changed since the term started (the fence).

Nobody therefore needs to ask a leader whether it is still alive. Removing its node ends its term:
:meth:`Election.remove` does that, and ZooKeeper does it when the session of the leader ends. A
leader that has not noticed it yet can do no harm, because the fence refuses its writes.

This module knows nothing of what is led: a job or a cluster.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from kazoo.client import TransactionRequest
from kazoo.exceptions import BadVersionError, NoNodeError

from edl.errors import CoordinationError, EdlError, LeadershipLost
from edl.record import Record
from edl.zookeeper.paths import sequence
from edl.zookeeper.reads import OnChange, children, decode, delete_node, encode, exists, get
from edl.zookeeper.session import Refused, Session, ZooKeeperClock

logger = logging.getLogger(__name__)
ATTEMPTS = 10  # each is lost only to another candidate that came or went at the same time
_FENCED: tuple[type[Exception], ...] = (NoNodeError, BadVersionError)


@dataclass(frozen=True)
class Write:
    """One write of a leader: set the value of a node (the default), or create or delete a node."""

    path: str  # with `sequence`, the beginning of the name
    value: Mapping[str, Any]  # the JSON object that the node holds afterwards
    version: int = -1  # that the node must have to be set or deleted; -1: any
    create: bool = False  # the node must not exist
    sequence: bool = False  # create it; ZooKeeper appends a number to the name
    delete: bool = False  # the node must have no children; `value` does not count
    check: bool = False  # only require that the node exists; `value` does not count


@dataclass(frozen=True)
class _Term(Record):
    term: int  # of the newest term, from 1


def candidate_of(node: str) -> str:
    """Return the name of the candidate that made the node `<candidate>-<token>-<sequence>`."""
    return node.rsplit("-", 2)[0]


def nodes_of(names: Iterable[str], candidate: str) -> list[str]:
    """Return the nodes of one candidate, one for each of its sessions; ended ones vanish late."""
    return [name for name in names if candidate_of(name) == candidate]


class Election:
    """One candidate's side of an election; call `enter` again after a lost session."""

    def __init__(
        self,
        session: Session,
        path: str,
        candidate: str,
        *,
        leader_path: str,
        record: Mapping[str, Any],
        missing: Callable[[], EdlError] | None = None,
        fence: str | None = None,
    ) -> None:
        self.session = session
        self.path = path
        self.candidate = candidate
        self.leader_path = leader_path
        self.record = record
        self._missing = missing or self._no_election
        self._fence = fence
        self._watched: tuple[str, ...] = ()  # our node, and the one before it
        self._wake: OnChange = None
        self._epoch = 0
        self._token = ""
        self._leadership: Leadership | None = None

    def enter(self) -> None:
        """Become a candidate with the current session; do nothing if this object already is one."""
        if self._epoch != self.session.epoch:
            # The nodes of an earlier session are gone or going. A new token, so that we never
            # take one of them for ours.
            self._epoch, self._token = self.session.epoch, uuid.uuid4().hex
            self._watched, self._leadership = (), None
        if self._watched and self._are_there(self._watched[:1]):
            return
        self._watched = ()
        candidates = self._candidates()
        # The fence makes it safe to remove other nodes of ours. One may be of the present session,
        # with the old token, if the session ended between two requests of `enter`; all others would
        # wait behind it, and we never lead with it.
        own = nodes_of(candidates, self.candidate)
        self._delete(name for name in own if not name.startswith(self._prefix))
        if self._mine(candidates) is not None:
            return
        self._leadership = None
        prefix, data = f"{self.path}/{self._prefix}", encode(self.record)

        def build(transaction: TransactionRequest) -> None:
            self._add_fence(transaction)
            transaction.create(prefix, data, ephemeral=True, sequence=True)

        try:
            self.session.transact("stand for election", build)
        except Refused:
            raise self._missing() from None

    def leads(self, wake: OnChange = None) -> Leadership | None:
        """Return this candidate's leadership, or None; this may begin a term."""
        # Called on kazoo's connection thread, so it must not block.
        self._wake = wake
        for _ in range(ATTEMPTS):
            if not self._watched:
                candidates = self._candidates()
                mine = self._mine(candidates)
                if mine is not None:
                    place = candidates.index(mine)
                    self._watched = (mine, *candidates[max(0, place - 1) : place])
            if not self._watched or self._epoch != self.session.epoch:
                self._leadership = None
                return None
            if not self._are_there(self._watched):
                self._watched = ()
                continue  # a candidate has left
            if len(self._watched) > 1:  # numbers only grow: nobody else comes before us
                return None
            mine = self._watched[0]
            if self._leadership is not None and self._leadership.node.endswith(mine):
                return self._leadership
            self._leadership = self._begin_term(mine)
            if self._leadership is not None:
                return self._leadership
            self._watched = ()
        raise CoordinationError(
            f"the election {self.path} changed {ATTEMPTS} times while it was read"
        )

    def leave(self) -> None:
        self._watched, self._leadership = (), None
        mine = self._mine(self._candidates())
        if mine is not None:
            self.session.read_all("leave the election", [delete_node(f"{self.path}/{mine}")])

    def ahead(self) -> list[str]:
        """Return the names of the candidates that come before this one, the leader's first."""
        return [candidate_of(name) for name in self._before()]

    def _before(self) -> list[str]:
        candidates = self._candidates()
        mine = self._mine(candidates)
        return candidates if mine is None else candidates[: candidates.index(mine)]

    def records_ahead(self) -> list[Mapping[str, Any]]:
        paths = [f"{self.path}/{name}" for name in self._before()]
        answers = self.session.read_all("read candidates", [get(path) for path in paths])
        found = zip(paths, answers, strict=True)
        return [decode(path, answer[0]) for path, answer in found if answer is not None]

    def remove(self, candidate: str) -> bool:
        """Remove a candidate from the election, which ends its term if it leads."""
        nodes = nodes_of(self._candidates(), candidate)
        # Safe at any time: the fence refuses later writes of a removed leader.
        self._delete(nodes)
        return bool(nodes)

    @property
    def _prefix(self) -> str:
        return f"{self.candidate}-{self._token}-"

    def _no_election(self) -> CoordinationError:
        return CoordinationError(
            f"there is no election at {self.path} with the leader in {self.leader_path}; "
            "create both nodes first"
        )

    def _candidates(self) -> list[str]:
        """Return the names of all candidates' nodes, by sequence number: the leader's first."""
        names = self.session.read_all("read the election", [children(self.path)])[0]
        if names is None:
            raise self._missing()
        return sorted(names, key=sequence)

    def _are_there(self, names: Sequence[str]) -> bool:
        nodes = [exists(f"{self.path}/{name}", self._wake) for name in names]
        return None not in self.session.read_all("watch the election", nodes)

    def _delete(self, names: Iterable[str]) -> None:
        for name in names:

            def build(transaction: TransactionRequest, name: str = name) -> None:
                self._add_fence(transaction)
                transaction.delete(f"{self.path}/{name}")

            # A node may be gone already; that is no error.
            try:
                self.session.transact("remove a candidate", build)
            except Refused as refused:
                if self._fence is not None and refused.is_missing(0):
                    raise self._missing() from None

    def _add_fence(self, transaction: TransactionRequest) -> None:
        # Terms need no such check: who removes the fence removes the candidates' nodes, too.
        if self._fence is not None:
            transaction.check(self._fence, -1)

    def _mine(self, candidates: Sequence[str]) -> str | None:
        if not self._token:
            return None
        # By its token, as the answer to its creation may have been lost.
        return next((name for name in candidates if name.startswith(self._prefix)), None)

    def _begin_term(self, mine: str) -> Leadership | None:
        answer = self.session.read_all("read the leader", [get(self.leader_path)])[0]
        if answer is None:
            raise self._missing()
        values = decode(self.leader_path, answer[0])
        term = _Term.from_json(values).term + 1 if values else 1
        node = f"{self.path}/{mine}"

        def build(transaction: TransactionRequest) -> None:
            # Both checks: we are still a candidate, and nobody began a term since the read.
            transaction.check(node, -1)
            data = encode({**self.record, "term": term})
            transaction.set_data(self.leader_path, data, answer[1].version)

        asked_s = time.monotonic()
        try:
            results = self.session.transact("start a term", build)
        except Refused:
            return None
        logger.info(
            "%s has won the election %s: it leads in term %d", self.candidate, self.path, term
        )
        stat = results[1]
        clock = ZooKeeperClock(stat.mtime / 1000.0, asked_s)
        return Leadership(self.session, term, node, self.leader_path, stat.version, clock)


class Leadership:
    """One term of one leader; when it is over, each write raises LeadershipLost instead."""

    CHECKS: ClassVar[int] = 2  # operations of the fence, before a leader's writes

    def __init__(
        self,
        session: Session,
        term: int,
        node: str,
        leader_path: str,
        leader_version: int,
        clock: ZooKeeperClock,
    ) -> None:
        self.term = term
        self.node = node
        self.clock = clock  # for times that the next leader, on another host, compares with its own
        self._session = session
        self._leader_path = leader_path
        self._leader_version = leader_version

    def commit(self, writes: Sequence[Write]) -> None:
        """Do all writes in one fenced transaction, in their order, or none of them."""
        try:
            self.try_commit(writes)
        except Refused as refused:
            write = writes[refused.index]
            raise CoordinationError(
                f"the leader of term {self.term} could not write {write.path}: it is not as "
                f"expected ({type(refused.error).__name__}); nothing was written"
            ) from refused

    def try_commit(self, writes: Sequence[Write]) -> None:
        """Do all writes in one fenced transaction; raise Refused if a node is not as expected."""
        try:
            self._session.transact("write as the leader", partial(self._build, writes=writes))
        except Refused as refused:
            raise self.checked(refused) from refused

    def transact(
        self, what: str, writes: Sequence[Write], build: Callable[[TransactionRequest], None]
    ) -> list[Any]:
        """Do `writes` and then what `build` adds in one fenced transaction."""

        def whole(transaction: TransactionRequest) -> None:
            self._build(transaction, writes)
            build(transaction)

        try:
            results = self._session.transact(what, whole)
        except Refused as refused:
            raise self.checked(refused) from refused
        return results[self.CHECKS + len(writes) :]

    def add_fence(self, transaction: TransactionRequest) -> None:
        # Its session must be able to read both nodes.
        transaction.check(self.node, -1)
        transaction.check(self._leader_path, self._leader_version)

    def checked(self, refused: Refused) -> Refused:
        """Return the error of a transaction that began with the fence, as one without the fence."""
        if refused.index < self.CHECKS and isinstance(refused.error, _FENCED):
            raise LeadershipLost(self.term) from refused
        return Refused(refused.index - self.CHECKS, refused.error)

    def _build(self, transaction: TransactionRequest, writes: Sequence[Write]) -> None:
        self.add_fence(transaction)
        for write in writes:
            if write.check:
                transaction.check(write.path, write.version)
            elif write.delete:
                transaction.delete(write.path, write.version)
            elif write.create or write.sequence:
                transaction.create(write.path, encode(write.value), sequence=write.sequence)
            else:
                transaction.set_data(write.path, encode(write.value), write.version)


# ------------------------------------------------------------
# Fence all transactions of a session by the term of a leader that was elected elsewhere.
#
# The leader of a cluster writes into the nodes of jobs, too: it creates, places and stops their
# runs. Such a write must do nothing once another controller leads. So the session with which it
# writes there proves the secret of the cluster beside those of the jobs, and each of its
# transactions checks the cluster's election, too. `FencedSession` is such a session.


class FencedSession(Session):
    """A session that can only read before `lead`, and changes nothing once that term is over."""

    _leadership: Leadership | None = None

    def lead(self, leadership: Leadership) -> None:
        # Another server of ZooKeeper than that of the election may be some writes behind.
        self.catch_up()
        self._leadership = leadership

    def catch_up(self) -> None:
        """Wait until this session can read all that any session has written before the call."""
        self.call("catch up", lambda client: client.sync_async("/"), repeat=True)

    def transact(self, what: str, build: Callable[[TransactionRequest], None]) -> list[Any]:
        leadership = self._leadership
        if leadership is None:
            raise CoordinationError(f"cannot {what}: this session writes for no leader")

        def fenced(transaction: TransactionRequest) -> None:
            leadership.add_fence(transaction)
            build(transaction)

        try:
            results = super().transact(what, fenced)
        except Refused as refused:
            raise leadership.checked(refused) from refused
        return results[leadership.CHECKS :]
