"""A worker as a candidate for the lead, and its term while it leads."""

from __future__ import annotations

import logging
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
    """One worker's part in the election. Only the daemon thread calls it, except :meth:`campaign`.

    Args:
        begin: starts a term of this worker.
        run: the start of the job that the candidates belong to.
        probe_timeout_s: for the port of another candidate to answer.
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
        """Become a candidate, unless this worker is one; from now on it may lead."""
        with self._lock:
            if self._election is None:
                self._election = make()

    def end_term(self) -> None:
        """Lead no more for now: the session is another one, or there is nothing left to decide."""
        self._term = None

    def resign(self) -> None:
        """Stand for election no more."""
        with self._lock:
            election, self._election, self._term = self._election, None, None
        if election is not None:
            election.leave()

    def turn(self, wake: Callable[[], None]) -> None:
        """Lead, if it is this worker's turn. ``wake`` is called when that may have changed."""
        if self._election is None:
            return
        self._election.enter()
        leadership = self._election.leads(wake)
        if leadership is None:
            self._term = None
            return
        if self._term is None or self._term.term != leadership.term:
            self._term = self._begin(leadership)
        try:
            self._term.turn(wake)
        except LeadershipLost as error:
            logger.info("%s", error)
            self._term = None

    def remove_dead(
        self,
        own: Member,
        generation: Generation | None,
        given_up: Collection[int],
        is_building: bool,
    ) -> bool:
        """When our ring is broken, do not wait for the sessions of dead candidates before us.

        Not for those of workers that died earlier, either: they are in no ring, and ``given_up``.

        Returns:
            Whether a candidate before us holds up the repair: it leads, or its session ends soon.
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
        """Whether the process of a worker is gone: nobody, or another worker, has its port."""
        if member is None:
            return False
        answer = ask(member.address, member.port, self._probe_timeout_s).answer(self._run())
        return gone(member.id, f"port {member.port}", answer) is not None
