"""The daemon: one thread of a worker that listens to ZooKeeper and keeps its own nodes there.

It never touches the ring and never waits for the training thread. What it learns it puts into
the mailbox; what the worker wants known (its member node, events) it writes, again and again
while ZooKeeper is away. When its worker leads, it also runs :class:`edl.leader.leader.LeaderTerm`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from edl.chaos import door
from edl.config import Config
from edl.coordination.access import Access
from edl.coordination.election import Election
from edl.coordination.job_store import JobStore
from edl.coordination.session import Session
from edl.core.events import Event
from edl.core.job.liveness import gone
from edl.core.job_spec import JobSettings
from edl.core.records import Generation, JobState, Leader, Member, RingFailure, Seat, Stage
from edl.core.sizes import Sizes
from edl.daemon.activity import Watch
from edl.daemon.event_log import EventLog
from edl.daemon.mailbox import Mailbox
from edl.errors import ConfigError, CoordinationError, Deposed, UnknownJob
from edl.http.client import ask
from edl.http.signing import Guard, http_key
from edl.leader.leader import LeaderTerm
from edl.ring.rendezvous import RendezvousServer
from edl.ring.ring import Ring

logger = logging.getLogger(__name__)

PERIOD_S = 0.5  # how often facts are read although no watch has fired
GATHER_S = 0.005  # news comes in bursts: one look for all of it
BREAKING_PERIOD_S = 0.05  # the same while the ring is broken
PROBE_TIMEOUT_S = 0.5


@dataclass(frozen=True)
class _End:
    """How the job ended, to be written."""

    state: JobState
    reason: str
    event: Event | None


class Daemon:
    """The coordination side of one worker process, from :meth:`start` to :meth:`close`."""

    is_shared = True

    def __init__(self, config: Config, mailbox: Mailbox, ring: Ring) -> None:
        if config.job is None or config.zookeeper is None:
            raise CoordinationError("a daemon needs a job and a ZooKeeper")
        self._config = config
        self._mailbox = mailbox
        self._ring = ring
        if config.secret is None:
            raise ConfigError(
                "secret",
                f"EDL_JOB is {config.job} and EDL_SECRET is missing: workers are started by "
                "`edl run` or `edl join`, which give it to them",
            )
        self._session = Session(
            config.zookeeper,
            config.session_timeout_s,
            config.connect_timeout_s,
            Access(config.job, config.secret),
        )
        self._store = JobStore(self._session, config.job)
        self._events = EventLog(self._store.events, mailbox)
        self._guard = Guard(http_key(config.secret, config.job))
        self._server = RendezvousServer(config.own_address, health=self._health, guard=self._guard)
        self._watch = Watch()
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._written = threading.Condition(self._lock)
        self._stopping = False
        self._withdrawn = False
        self._dirty = False  # the member node is behind self._member
        self._thread = threading.Thread(target=self._run, name="edl-daemon", daemon=True)
        self._member: Member | None = None
        self._saved: tuple[str, int] | None = None  # a checkpoint not yet made known
        self._end: _End | None = None
        self._election: Election | None = None
        self._leader_term: LeaderTerm | None = None
        self._period_s = PERIOD_S
        self._newest = 0
        self._scope = ""
        self._session_epoch = 0
        self.leave_requested = False  # set by a signal handler, which must take no lock

    @property
    def settings(self) -> JobSettings:
        """Those of the job, once it was read; the launcher has written them."""
        return self._config.job_settings

    @property
    def sizes(self) -> Sizes:
        """How many workers the job may have; the same."""
        return self._config.sizes

    def start(self) -> tuple[Member, Generation | None]:
        """Connect, register this worker as *preparing*, and start listening.

        Returns:
            This worker's member record, and the job's generation when it has one already.

        Raises:
            ZooKeeperUnreachable: within the connect time-out.
            UnknownJob: the job does not exist (any more).
        """
        config = self._config
        self._watch.start()
        self._session.start()
        self._session.add_listener(lambda _state: self._wake.set())
        self._session_epoch = self._session.epoch
        job, generation, _evicted, leader = self._store.watch_generation(self._wake.set)
        self._config = replace(config, sizes=job.sizes, job_settings=job.spec.settings)
        if self.settings.chaos:
            door.open_door(self._server, self._session, self._ring)
        self._mailbox.leads(leader)
        self._server.start()
        worker = self._store.members.new_id()
        self._mailbox.worker = self._guard.worker = worker
        self._member = Member(
            id=worker,
            host=config.host,
            slot=config.slot,
            address=config.own_address,
            port=self._server.port,
            pid=os.getpid(),
            launch=config.launch,
        )
        self._store.members.put(self._member)
        self._thread.start()
        return self._member, generation

    def close(self) -> None:
        """Remove this worker's nodes, close the session and stop the threads. Idempotent."""
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
        self._wake.set()
        self._watch.stop()
        if self._thread.is_alive():
            self._thread.join(timeout=10)
        self._server.close()
        self._session.close()

    # --- called by the training thread ---

    def withdraw(self) -> None:
        """Take back this worker's part in ring and election; what is to be made known still is."""
        self._withdrawn = True
        self._wake.set()

    def stand_for_election(self) -> None:
        """Become a candidate; from now on this worker may lead."""
        with self._lock:
            if self._election is None and self._member is not None:
                self._election = Election(self._session, self._config.job or "", self._member.id)
        self._wake.set()

    def wait_beyond(self, generation: int) -> None:
        """This newcomer is ready, and has taken note of ``generation``, which is not for it."""
        self.set_stage(Stage.READY, generation=0, newest_generation=generation)

    def set_stage(
        self,
        stage: Stage,
        generation: int | None = None,
        newest_generation: int | None = None,
    ) -> None:
        """Make a new stage of this worker known, as soon as ZooKeeper allows.

        What else is given is new, too: the ring it is in, the generation it has taken note of.

        Who was asked to leave, and enters another ring on the way out, is leaving there too.
        """
        with self._lock:
            assert self._member is not None
            own = self._member
            self._member = replace(
                own,
                stage=own.stage if own.stage is Stage.LEAVING and stage is Stage.ACTIVE else stage,
                generation=own.generation if generation is None else generation,
                newest_generation=(
                    own.newest_generation if newest_generation is None else newest_generation
                ),
            )
            self._dirty = True
        self._wake.set()

    def report_broken(self, failure: RingFailure) -> None:
        """Say that a ring failed, and what was complete."""
        self._change_member(broken=failure)

    @property
    def run(self) -> str:
        """An identity of this start of the job."""
        return self._store.nodes.run

    def put_saved(self, directory: str, step: int) -> None:
        """Make known that a checkpoint of ``step`` is in ``directory``; safe from any thread."""
        with self._lock:
            self._saved = (directory, step)
        self._wake.set()

    def last_step(self) -> int:
        """The last step that a leader has told of; at most what the job had reached."""
        return self._store.status().step

    def end_job(self, state: JobState, reason: str, event: Event | None = None) -> None:
        """Make known how the job ended. Every worker says so; the first one counts.

        ``event``: logs it, if we are the first.
        """
        with self._lock:
            self._end = _End(state, reason, event)
        self._wake.set()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that is to be made known is written; False at the deadline."""
        deadline = time.monotonic() + timeout_s
        self._wake.set()
        with self._written:
            while self._dirty or self._saved or self._end or self._mailbox.has_events:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                self._written.wait(left)
        return True

    @property
    def away(self) -> bool:
        """ZooKeeper cannot be reached, so nobody is heard and nobody can lead."""
        return not self._session.connected

    @property
    def wake(self) -> threading.Event:
        return self._wake

    # --- the thread ---

    def _run(self) -> None:
        """Listen until the worker ends. A worker whose daemon fails ends, too: it would be deaf."""
        try:
            self._listen()
        except Exception as error:  # a bug of ours, whatever it is
            logger.exception("the daemon of this worker has failed; please report this")
            self._mailbox.evict(f"its daemon has failed: {error!r}")
            self._ring.break_()

    def _listen(self) -> None:
        away_since: float | None = None
        while not self._stopping:
            if self._wake.wait(self._period_s):
                time.sleep(GATHER_S)
            self._wake.clear()
            try:
                self._turn()
                if away_since is not None:
                    logger.info("ZooKeeper is back after %.1f s", time.monotonic() - away_since)
                    away_since = None
            except CoordinationError as error:
                if away_since is None:
                    away_since = time.monotonic()
                    logger.warning("coordination is interrupted, training goes on: %s", error)
            except UnknownJob as error:  # it was removed, or another one has its name
                self._mailbox.evict(f"its job is gone: {error}")
                self._ring.break_()
                return
        try:
            self._write_own()
            if self._election is not None:
                self._election.leave()
            self._remove_member()
            self._conclude_stop()
        except (CoordinationError, UnknownJob) as error:
            logger.info("the session ends without clean-up: %s", error)

    def _conclude(self, end: _End) -> None:
        exit_code = 1 if end.state is JobState.FAILED else 0
        if self._store.set_job_state(end.state, end.reason, exit_code) and end.event is not None:
            self._mailbox.log(end.event)

    def _conclude_stop(self) -> None:
        """Say that the job has stopped, when this was its last worker and no agent is left."""
        now = self._store.snapshot()
        if now.job.state is JobState.STOPPING and not now.hosts and not now.members:
            self._store.set_job_state(
                JobState.STOPPED, now.job.reason, only_from=(JobState.STOPPING,)
            )

    def _turn(self) -> None:
        """Write what is due, read what is new, lead if it is our turn."""
        if not self._session.connected:
            raise CoordinationError("not connected to ZooKeeper")
        if self._session.epoch != self._session_epoch:
            # The old session's nodes are gone; the worker is not. Say so again under the same id.
            self._session_epoch = self._session.epoch
            self._leader_term = None
            with self._lock:
                self._dirty = True
        if self._withdrawn:
            self._resign()
            self._write_own()
            self._remove_member()
            return
        if self.leave_requested:
            self.leave_requested = False
            self.set_stage(Stage.LEAVING)
        self._write_own()
        job, generation, evicted, leader = self._store.watch_generation(self._wake.set)
        self._mailbox.leads(leader)
        if self._member is not None and self._member.id in evicted:
            self._mailbox.evict(evicted[self._member.id])
            self._resign()
        if generation is not None and generation.number > self._newest:
            self._newest = generation.number
            # Whoever still waits in an older rendezvous waits in vain: this fails them now.
            self._server.announce(generation.scope)
            self._scope = generation.scope
            self._mailbox.announce(generation)
        self._mailbox.job_is(job.state, job.reason)
        self._config = replace(self._config, sizes=job.sizes)  # as edl-discover may say later
        self._break_ring_of(frozenset(evicted))
        self._depose_the_dead(generation)
        if job.state.over or (generation is not None and not generation.seats):
            self._leader_term = None  # nothing is left to decide
        else:
            self._take_lead()
        if self._leader_term is not None:
            try:
                self._leader_term.turn(self._wake.set)
            except Deposed as error:
                logger.info("%s", error)
                self._leader_term = None

    def _break_ring_of(self, evicted: frozenset[int]) -> None:
        """Free the training thread from a ring that has lost a member, or that nobody wants.

        The latter is one that is still being built although the next is decided. Again and again
        while that is so: a ring that is being built opens connections all the time.
        """
        number, members = self._ring.membership
        lost = bool(evicted & set(members))
        if lost or (self._ring.is_building and number < self._newest):
            self._ring.break_(number)
            self._period_s = BREAKING_PERIOD_S
        else:
            self._period_s = PERIOD_S
        if lost and self._scope and number == self._newest:
            self._server.close_scope(self._scope)  # whoever waits in it waits for the lost one

    def _depose_the_dead(self, generation: Generation | None) -> None:
        """When our ring is broken, do not wait for the sessions of dead candidates before us."""
        member, election = self._member, self._election
        if generation is None or election is None or member is None:
            return
        stuck = member.broken is not None and member.broken.generation >= generation.number
        stuck |= self._ring.is_building
        if not stuck and member.stage is not Stage.READY:  # a newcomer has no ring to go on with
            return
        seats = {seat.id: seat for seat in (*generation.seats, *generation.previous)}
        for worker in election.ahead():
            seat = seats.get(worker)
            if seat is None or worker == member.id or not _is_gone(seat):
                if stuck:  # this one leads, or its session ends soon
                    self._period_s = BREAKING_PERIOD_S
                return
            logger.info("the candidate w%d is gone: port %d is not its own", worker, seat.port)
            election.depose(worker)

    def _resign(self) -> None:
        """Stand for election no more: this worker was given up, though its daemon lives."""
        with self._lock:
            election, self._election, self._leader_term = self._election, None, None
        if election is not None:
            election.leave()

    def _take_lead(self) -> None:
        if self._election is None:
            return
        self._election.enter()
        leadership = self._election.leads(self._wake.set)
        if leadership is None:
            self._leader_term = None
        elif self._leader_term is None or self._leader_term.term != leadership.term:
            assert self._member is not None
            self._leader_term = LeaderTerm(
                self._config,
                self._store,
                leadership,
                self._member.id,
                lambda: self._mailbox.progress,
                self._watch.look,
                self._mailbox.log,
                self._events.write,
            )
            self._mailbox.leads(Leader(leadership.term, self._member.id))

    def _change_member(self, **changes: Any) -> None:
        with self._lock:
            assert self._member is not None
            self._member = replace(self._member, **changes)
            self._dirty = True
        self._wake.set()

    def _remove_member(self) -> None:
        if self._member is not None:
            self._store.members.remove(self._member.id)

    def _write_own(self) -> None:
        with self._lock:
            member, dirty = self._member, self._dirty and not self._withdrawn
            saved, end = self._saved, self._end
        if dirty and member is not None:
            self._store.members.put(member)
        if saved is not None:
            self._store.put_saved(*saved)
        if end is not None:
            self._conclude(end)
        self._events.write()
        with self._written:
            if self._member is member:
                self._dirty = False
            if self._saved is saved:
                self._saved = None
            if self._end is end:
                self._end = None
            self._written.notify_all()

    def _health(self) -> Mapping[str, Any]:
        member = self._member
        return {
            "worker": member.name if member else None,
            "stage": member.stage if member else None,
            **self._mailbox.progress.for_others(time.monotonic()),
            "activity": self._watch.look().to_json(),
        }


def _is_gone(seat: Seat) -> bool:
    """Whether the process of a worker is gone: nobody, or another worker, has its port."""
    answer = ask(seat.address, seat.port, PROBE_TIMEOUT_S).answer
    return gone(seat.id, f"port {seat.port}", answer) is not None
