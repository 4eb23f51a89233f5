"""Who leads a job, and the fence that refuses every write of a leader whose time is over.

Candidates are ephemeral sequential nodes; the lowest leads. A term starts with one transaction
that checks the candidate's own node and writes ``leader`` with the next term. Every later write
of that leader is a transaction that checks the same node, and that ``leader`` is still as it wrote
it. So nobody needs to ask a leader whether it is still there: whoever removes its node
(:meth:`Election.depose`, or ZooKeeper when its session ends) has ended its term, and a leader that
does not know it yet can do no harm. Terms grow strictly.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from kazoo.client import KazooClient, TransactionRequest
from kazoo.exceptions import BadVersionError, NoNodeError

from edl.coordination.lifecycle import unknown_job
from edl.coordination.paths import JobPaths, candidacies, sequence
from edl.coordination.reads import OnChange, children, delete, exists, get
from edl.coordination.session import Refused, Session
from edl.coordination.wire import decode, encode
from edl.core.events import Event
from edl.core.job.decision import MembershipDecision
from edl.core.progress import TrainingStatus
from edl.core.records import Desired, Generation, Leader
from edl.errors import CoordinationError, LeadershipLost

logger = logging.getLogger(__name__)

ATTEMPTS = 10  # each is lost only to another writer of the same nodes


@dataclass(frozen=True)
class Write:
    """One write of a leader: set the node (with ``version`` >= 0: only that one) or create it.

    A ``sequence`` of nodes is continued by one; ``path`` is what their names begin with.
    """

    path: str
    value: Mapping[str, Any]
    version: int = -1
    create: bool = False
    sequence: bool = False


def logged(paths: JobPaths, event: Event) -> Write:
    """The write of an event."""
    return Write(f"{paths.events}/e-", event.to_json(), sequence=True)


class Election:
    """The candidacy of one worker. The caller calls :meth:`enter` again after a lost session."""

    def __init__(self, session: Session, job: str, worker: int) -> None:
        self.session = session
        self.paths = JobPaths(job)
        self.worker = worker
        self._watched: tuple[str, ...] = ()  # our node, and the one before it
        self._wake: OnChange = None
        self._epoch = 0
        self._token = ""
        self._leadership: Leadership | None = None

    def enter(self) -> None:
        """Stand as a candidate of the current session; nothing happens when we do already.

        Raises:
            UnknownJob: there is no such job.
            CoordinationError: ZooKeeper is away; call it again.
        """
        if self._epoch != self.session.epoch:
            # The nodes of an earlier session are gone or going. A new token, so that we never
            # take one of them for ours.
            self._epoch, self._token = self.session.epoch, uuid.uuid4().hex
            self._watched, self._leadership = (), None
        if self._watched and self._are_there(self._watched[:1]):
            return
        self._watched = ()
        candidates = self._candidates()
        self._remove_others(candidates)
        if self._mine(candidates) is not None:
            return
        self._leadership = None
        prefix = f"{self.paths.election}/w{self.worker}-{self._token}-"
        data = encode({"worker": self.worker})

        def issue(client: KazooClient) -> Any:
            return client.create_async(prefix, data, ephemeral=True, sequence=True)

        try:
            self.session.call("stand for election", issue)
        except NoNodeError:
            raise unknown_job(self.session, self.paths) from None

    def leads(self, wake: OnChange = None) -> Leadership | None:
        """Our leadership when our node is the lowest: a new term, or the one under way.

        ``wake`` is called when that may have changed: our node, or the one before it, is gone.
        None also when we do not stand (never entered, deposed, session lost): see :meth:`enter`.

        Raises:
            CoordinationError: ZooKeeper is away.
        """
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
                continue  # somebody has left
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
            f"the election of job {self.paths.name} changed {ATTEMPTS} times while it was read"
        )

    def leave(self) -> None:
        """Stand no longer; a leadership ends with it. Nothing happens when we do not stand.

        Raises:
            CoordinationError: ZooKeeper is away; the candidacy ends with the session.
        """
        self._watched, self._leadership = (), None
        mine = self._mine(self._candidates())
        if mine is not None:
            self.session.read_all("leave the election", [delete(f"{self.paths.election}/{mine}")])

    def ahead(self) -> list[int]:
        """The workers whose candidacy comes before ours, the leader's first; all without one.

        Raises:
            CoordinationError: ZooKeeper is away.
        """
        candidates = self._candidates()
        mine = self._mine(candidates)
        before = candidates if mine is None else candidates[: candidates.index(mine)]
        return [int(name[1 : name.index("-")]) for name in before]

    def remove(self, worker: int) -> bool:
        """Remove another worker's candidacy; True when it had one. The fence makes it safe.

        Raises:
            CoordinationError: ZooKeeper is away.
        """
        nodes = candidacies(self._candidates(), worker)
        self.session.read_all(
            "depose a leader", [delete(f"{self.paths.election}/{name}") for name in nodes]
        )
        return bool(nodes)

    def _candidates(self) -> list[str]:
        """Names of all candidate nodes, the leader first."""
        names = self.session.read_all("read the election", [children(self.paths.election)])[0]
        if names is None:
            raise unknown_job(self.session, self.paths)
        return sorted(names, key=sequence)

    def _are_there(self, names: Sequence[str]) -> bool:
        """Whether all of these candidates stand; ZooKeeper is asked once until one goes."""
        nodes = [exists(f"{self.paths.election}/{name}", self._wake) for name in names]
        return None not in self.session.read_all("watch the election", nodes)

    def _remove_others(self, candidates: Sequence[str]) -> None:
        """Remove our nodes of earlier sessions; the fence makes it safe.

        One may even belong to the present session: when the one before ends between two requests
        of :meth:`enter`, the node is made in the new one, with the old token. Nobody would lead
        with it, and everybody would wait behind it.
        """
        mine = f"w{self.worker}-{self._token}-"
        others = [n for n in candidacies(candidates, self.worker) if not n.startswith(mine)]
        if others:
            self.session.read_all(
                "leave the election", [delete(f"{self.paths.election}/{name}") for name in others]
            )

    def _mine(self, candidates: Sequence[str]) -> str | None:
        """Our own node: found by its token, for an answer to its creation may have been lost."""
        prefix = f"w{self.worker}-{self._token}-"
        if not self._token:
            return None
        return next((name for name in candidates if name.startswith(prefix)), None)

    def _begin_term(self, mine: str) -> Leadership | None:
        """Start the next term; None when ``leader`` or our node changed under us: look again."""
        answer = self.session.read_all("read the leader", [get(self.paths.leader)])[0]
        if answer is None:
            raise unknown_job(self.session, self.paths)
        values = decode(self.paths.leader, answer[0])
        term = Leader.from_json(values).term + 1 if values else 1
        node = f"{self.paths.election}/{mine}"

        def build(transaction: TransactionRequest) -> None:
            transaction.check(node, -1)
            data = encode(Leader(term, self.worker).to_json())
            transaction.set_data(self.paths.leader, data, answer[1].version)

        try:
            results = self.session.transact("start a term", build)
        except Refused:
            return None
        logger.info("w%d leads job %s in term %d", self.worker, self.paths.name, term)
        return Leadership(self.session, self.paths, term, node, results[1].version)


class Leadership:
    """One term of one leader: the only door to the writes that a leader may do.

    Made by :meth:`Election.leads`. When the term is over, each method raises Deposed and has
    changed nothing; the term never comes back.
    """

    def __init__(
        self, session: Session, paths: JobPaths, term: int, node: str, leader_version: int
    ) -> None:
        self.term = term
        self.node = node
        self._session = session
        self._paths = paths
        self._leader_version = leader_version

    def commit(self, writes: Sequence[Write]) -> None:
        """Do all writes, or none.

        Raises:
            Deposed: the term is over; nothing was written.
            CoordinationError: a node is not as a write expects (nothing was written), or
                ZooKeeper is away (unknown whether they were written: read again).
        """
        try:
            self._transact(writes)
        except Refused as refused:
            write = writes[refused.index - _FENCE]
            raise CoordinationError(
                f"the leader of term {self.term} could not write {write.path}: it is not as "
                f"expected ({type(refused.error).__name__}); nothing was written"
            ) from refused

    def carry_out(self, decision: MembershipDecision, events: Sequence[Event] = ()) -> None:
        """Persist a decision: generation, sizes, evictions, answers and events, all or nothing.

        What somebody else has asked for since it was made is not overwritten.

        Args:
            events: what the event log shall say of it.

        Raises:
            Deposed: the term is over; nothing was written.
            CoordinationError: the generation is not the current one + 1, or other workers are
                desired, or a request that it grants was withdrawn
                (nothing was written: decide again), or ZooKeeper is away (unknown: read again).
        """
        for _ in range(ATTEMPTS):
            writes = self._writes(decision)
            if not writes:
                return
            try:
                self._transact([*writes, *(logged(self._paths, event) for event in events)])
            except Refused:
                continue  # what is desired was changed or a request withdrawn after we read it
            return
        raise CoordinationError(
            f"a decision of term {self.term} could not be written: what it changes was changed "
            f"by others {ATTEMPTS} times"
        )

    def put_status(self, status: TrainingStatus) -> None:
        """Write the summary for people and tools.

        Raises:
            Deposed, CoordinationError: as :meth:`commit`.
        """
        self.commit([Write(self._paths.status, status.to_json())])

    def _writes(self, decision: MembershipDecision) -> list[Write]:
        p = self._paths
        evictions = [p.evicted_worker(worker) for worker in decision.evict]
        answered = [p.request(request.number) for request in decision.answers]
        sizes = (p.generation, p.desired, p.assigned)
        reads = [*map(get, sizes), *map(exists, [*evictions, *answered])]
        found = self._session.read_all("read what a decision changes", reads)
        generation, desired, assigned, *there = found
        if None in (generation, desired, assigned):
            raise unknown_job(self._session, p)
        writes: list[Write] = []
        if decision.generation is not None:
            self._check_number(decision.generation, decode(p.generation, generation[0]))
            value = decision.generation.to_json()
            writes.append(Write(p.generation, value, generation[1].version))
        if change := decision.change:
            stands = Desired.from_json(decode(p.desired, desired[0]))
            if (stands.hosts, stands.reclaims) != (change.before.hosts, change.before.reclaims):
                raise CoordinationError("other workers are desired meanwhile; decide again")
            writes.append(Write(p.desired, change.desired.to_json(), desired[1].version))
            if change.assigned is not None:
                writes.append(Write(p.assigned, change.assigned.to_json(), assigned[1].version))
        present = dict(zip([*evictions, *answered], there, strict=True))
        for path, reason in zip(evictions, decision.evict.values(), strict=True):
            if present[path] is None:
                writes.append(Write(path, {"reason": reason, "term": self.term}, create=True))
        for path, request in zip(answered, decision.answers, strict=True):
            if present[path] is not None:
                writes.append(Write(path, request.to_json()))
            elif request.accepted:  # what is decided is for it: who withdrew it was told so
                raise CoordinationError("a request was withdrawn meanwhile; decide again")
        asked = (replace(request, number=-1).to_json() for request in decision.asks)
        return [*writes, *(Write(f"{p.requests}/r-", each, sequence=True) for each in asked)]

    def _check_number(self, new: Generation, current: Mapping[str, Any]) -> None:
        number = Generation.from_json(current).number if current else 0
        if new.number != number + 1 or new.term != self.term:
            raise CoordinationError(
                f"generation {new.number} of term {new.term} cannot follow generation {number} "
                f"in term {self.term}; decide again on a fresh snapshot"
            )

    def _transact(self, writes: Sequence[Write]) -> None:
        try:
            self._session.transact("write as the leader", partial(self._build, writes=writes))
        except Refused as refused:
            if refused.index < _FENCE and isinstance(refused.error, _FENCED):
                raise LeadershipLost(self.term) from refused
            raise

    def _build(self, transaction: TransactionRequest, writes: Sequence[Write]) -> None:
        transaction.check(self.node, -1)
        transaction.check(self._paths.leader, self._leader_version)
        for write in writes:
            if write.create or write.sequence:
                transaction.create(write.path, encode(write.value), sequence=write.sequence)
            else:
                transaction.set_data(write.path, encode(write.value), write.version)


_FENCE = 2  # operations that _build puts before the writes
_FENCED: tuple[type[Exception], ...] = (NoNodeError, BadVersionError)
