"""Let a worker take part in the election of the leader, and act as the leader while it leads.

The daemon thread of the worker calls :meth:`Candidate.turn` again and again.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection

from edl.coordination.election import Election, Leadership
from edl.coordination.paths import candidate_worker
from edl.core.job.liveness import gone
from edl.core.records import Generation, Member, RingMember, Stage
from edl.errors import LeadershipLost
from edl.http.client import ask
from edl.leader.leader import LeaderTerm

logger = logging.getLogger(__name__)


class Candidate:
    """One worker's part in the election of the leader of its job.

    A new object is no candidate until :meth:`campaign` is called. Only the daemon thread calls the
    methods, except for :meth:`campaign`, which any thread may call.

    Args:
        begin: Called in :meth:`turn` with the won election when this worker begins to lead; returns
            the object whose method ``turn`` does the leader's work.
        run: Returns the identifier of the start of the job that this worker belongs to. If a worker
            of another start answers on a candidate's port, the candidate counts as dead.
        probe_timeout_s: How long to wait for the port of another candidate to answer, in seconds.
    """

    def __init__(
        self,
        begin: Callable[[Leadership], LeaderTerm],
        run: Callable[[], str],
        probe_timeout_s: float,
    ) -> None:
        self._begin = begin
        self._run = run
        self._probe_timeout_s = probe_timeout_s
        self._lock = threading.Lock()
        self._election: Election | None = None
        self._term: LeaderTerm | None = None

    def campaign(self, make: Callable[[], Election]) -> None:
        """Become a candidate with the election that ``make`` returns, unless this worker is one.

        ``make`` is called at once, or not at all if this worker is a candidate already. ZooKeeper
        learns of the candidate in the next :meth:`turn`; from then on this worker may lead.
        """
        with self._lock:
            if self._election is None:
                self._election = make()

    def end_term(self) -> None:
        """Drop this worker's present term, if it leads, but stay a candidate.

        Nothing is written to ZooKeeper; the next :meth:`turn` may start a term again. This is
        called when the job was restored in ZooKeeper, or when it is over.
        """
        self._term = None

    def resign(self) -> None:
        """Stop being a candidate and leading, and remove this worker's candidate node.

        If this worker is no candidate, nothing happens. :meth:`campaign` makes it one again.

        Raises:
            CoordinationError: ZooKeeper is away; the node ends with the session.
            UnknownJob: the job is gone.
        """
        with self._lock:
            election, self._election, self._term = self._election, None, None
        if election is not None:
            election.leave()

    def turn(self, wake: Callable[[], None]) -> float:
        """Take part in the election and, if this worker leads, do one turn of its term.

        A leader's turn reads the state of the job, decides, and writes the decision. Before
        :meth:`campaign` and after :meth:`resign` nothing happens.

        Args:
            wake: Called later, in another thread, when the state of the job may have changed; the
                caller should then call this method again.

        Returns:
            After how many seconds the caller should call this method again although nothing has
            changed; infinite if its usual period is enough, always so if this worker does not lead.

        Raises:
            CoordinationError: ZooKeeper is away.
            UnknownJob: the job is gone.
        """
        if self._election is None:
            return math.inf
        self._election.enter()
        leadership = self._election.leads(wake)
        if leadership is None:
            self._term = None
            return math.inf
        if self._term is None or self._term.term != leadership.term:
            self._term = self._begin(leadership)
        try:
            return self._term.turn(wake)
        except LeadershipLost as error:
            logger.info("%s", error)
            self._term = None
            return math.inf

    def remove_dead(
        self,
        own: Member,
        generation: Generation | None,
        given_up: Collection[int],
        is_building: bool,
    ) -> bool:
        """Remove dead candidates ahead of this worker while it waits for a new ring.

        The worker waits for a new ring if its ring is broken or being built, or if it is a newcomer
        that is ready to join; else nothing is removed. Without the removal no worker could lead
        until the sessions of the dead candidates end. Workers in ``given_up`` count as dead; any
        other one is dead if its port shows that its process has ended. The search ends at the first
        candidate that is not dead.

        Args:
            own: This worker's member record.
            generation: The newest generation; None if there is none (then nothing is removed).
            given_up: The ids of the evicted workers.
            is_building: Whether this worker's ring is being built.

        Returns:
            True if the ring of this worker is broken or being built, and a candidate that is not
            dead comes before this worker: call again soon. False in all other cases.

        Raises:
            CoordinationError: ZooKeeper is away.
            UnknownJob: the job is gone.
        """
        election = self._election
        if generation is None or election is None:
            return False
        stuck = own.broken is not None and own.broken.generation >= generation.number
        stuck |= is_building
        if not stuck and own.stage is not Stage.READY:  # a newcomer has no ring to go on with
            return False
        members = {member.id: member for member in (*generation.members, *generation.previous)}
        for name in election.ahead():
            worker = candidate_worker(name)
            dead = worker in given_up or self._is_gone(members.get(worker))
            if worker == own.id or not dead:
                return stuck
            logger.info("the candidate %s is gone", name)
            election.remove(name)
        return False

    def _is_gone(self, member: RingMember | None) -> bool:
        """Return whether the process of the worker ``member`` has ended; False if it is None.

        It has ended if another worker answers on its port, or if the port refuses connections. A
        port that does not answer in time proves nothing (False).
        """
        if member is None:
            return False
        answer = ask(member.address, member.port, self._probe_timeout_s).answer(self._run())
        return gone(member.id, f"port {member.port}", answer) is not None
