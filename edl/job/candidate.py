"""Let a worker take part in the election of the leader, and act as the leader while it leads.

The daemon thread of the worker calls :meth:`Candidate.turn` again and again.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection

from edl.errors import CoordinationError, LeadershipLost
from edl.http.client import ask
from edl.job.leader import LeaderTerm
from edl.job.liveness import gone
from edl.records import Generation, Member, RingMember, Stage
from edl.zookeeper.election import Election, Leadership
from edl.zookeeper.paths import candidate_worker

logger = logging.getLogger(__name__)


class Candidate:
    """One worker's part in the election of the leader; any thread may call `campaign`."""

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
        """Become a candidate in the next `turn`, unless this worker is one."""
        with self._lock:
            if self._election is None:
                self._election = make()

    def end_term(self) -> None:
        """Drop this worker's term, but stay a candidate: the job was restored, or is over."""
        self._term = None

    def resign(self) -> None:
        """Stop being a candidate and leading, and remove this worker's candidate node."""
        with self._lock:
            election, self._election, self._term = self._election, None, None
        if election is not None:
            election.leave()

    def turn(self, wake: Callable[[], None]) -> float:
        """Take part in the election and, if this worker leads, do one turn; return when again."""
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
        """Remove dead candidates ahead while this worker waits for a ring; return if to repeat."""
        election = self._election
        if generation is None or election is None:
            return False
        stuck = own.broken is not None and own.broken.generation >= generation.number
        stuck |= is_building
        if not stuck and own.stage is not Stage.READY:  # a newcomer has no ring to go on with
            return False
        # Else nobody could lead until the sessions of the dead candidates end.
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
        if member is None:
            return False
        answer = ask(member.address, member.port, self._probe_timeout_s).answer(self._run())
        return gone(member.id, f"port {member.port}", answer) is not None


# ------------------------------------------------------------
# Measure how long a daemon has been without ZooKeeper (`Outage`), and log both ends.


class Outage:
    """The measurement of the time in which one daemon cannot reach ZooKeeper."""

    def __init__(self) -> None:
        self._since: float | None = None
        self.from_step = -1  # the newest step when the last outage began; -1: there was none

    def begin(self, error: CoordinationError, step: int) -> None:
        """Begin an outage, and log a warning with its cause; during one do nothing."""
        if self._since is None:
            self._since, self.from_step = time.monotonic(), step
            logger.warning("coordination is interrupted, training goes on: %s", error)

    def end(self) -> tuple[float, str]:
        """End the outage, if one lasts; return its seconds and a sentence."""
        if self._since is None:
            return 0.0, ""
        away_s = time.monotonic() - self._since
        self._since, reason = None, f"ZooKeeper is back after {away_s:.1f} s"
        logger.info("%s", reason)
        return away_s, reason
