"""Run the daemon of a worker: a thread that follows ZooKeeper and keeps the worker's nodes in it.

It hands news of the job to the training thread, for which it never waits, writes the worker's
record and events, breaks the ring when a member is evicted, and runs
:class:`edl.job.leader.LeaderTerm` while its worker leads. While ZooKeeper is away it retries.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from edl import __version__
from edl.chaos import endpoints
from edl.checkpoint.location import mount_point
from edl.config import Config
from edl.errors import ConfigError, CoordinationError, JobFailed, UnknownJob
from edl.events import Details, Event, LogFailedDetails, LogResumedDetails, ZookeeperBackDetails
from edl.host.job_end import stopped_outcome
from edl.http.client import METRICS_PATH, MODEL_PATH, ask_all, script_of
from edl.http.exposition import MetricsHandler
from edl.http.server import DaemonServer, HttpRequest
from edl.http.signing import Authenticator, http_key
from edl.job.leader import Candidate, LeaderTerm
from edl.job.pending_writes import JobEndEndpoint, OwnLog, PendingWrites
from edl.job.run import JobEnd
from edl.job.script import UNSERVED_S, ScriptOfJob, as_json, waits_for_ended
from edl.job.stall import FOR_COLLECTIVE
from edl.metric import Sample
from edl.metrics import worker_samples
from edl.policy.scaling_profile import ScalingProfile
from edl.records import Generation, JobPolicy, JobState, Leader, Member, RingFailure, Stage
from edl.ring.rendezvous import RendezvousServer
from edl.ring.ring import Ring
from edl.step.record import PROTOCOL
from edl.worker.activity import ThreadWatch
from edl.worker.shared_state import SharedState
from edl.zookeeper.access import Access
from edl.zookeeper.election import Leadership
from edl.zookeeper.session import Session
from edl.zookeeper.store import JobStore, PolicyNodes, WorkersLostJob, job_election

logger = logging.getLogger(__name__)


# ------------------------------------------------------------
# What others ask a worker at its HTTP port. All routes are open: they need no signature.


class WorkerEndpoints:
    def __init__(
        self,
        config: Config,
        shared: SharedState,
        store: JobStore,
        pending_writes: PendingWrites,
        watch: ThreadWatch,
        ring: Ring,
    ) -> None:
        self.newest_generation = 0  # the daemon sets it
        self._config = config
        self._shared = shared
        self._store = store
        self._pending_writes = pending_writes
        self._watch = watch
        self._ring = ring

    def add_to(self, server: DaemonServer) -> None:
        server.add_route(MODEL_PATH, self._model, "application/json")
        server.add_route(METRICS_PATH, MetricsHandler(self._metrics))

    def health(self) -> Mapping[str, Any]:
        member = self._pending_writes.member
        return {
            "worker": member.name if member else None,
            "run": self._store.nodes.run if member else None,
            "stage": member.stage if member else None,
            "newest_generation": self.newest_generation,
            **self._shared.progress.for_others(time.monotonic()),
            "ring": {
                "generation": self._ring.membership[0],
                "exchanges": self._ring.exchanges,
                "updates": self._ring.updates,
            },
            "activity": self._watch.look().to_json(),
        }

    def _model(self, _request: HttpRequest) -> tuple[int, bytes]:
        """Answer with the shapes of the model's tensors and the script's fits."""
        fits = self._shared.fits
        script = {
            "signature": self._shared.signature(),
            "epoch": self._shared.epoch,
            "arithmetic": self._shared.arithmetic().to_json(),
            "protocol": PROTOCOL,
            "begun": fits.begun,
            "done": as_json(fits.done),
        }
        return 200, json.dumps(script).encode()

    def _metrics(self) -> Iterable[Sample]:
        leader, worker = self._shared.leader, self._shared.worker
        name = f"w{worker}" if worker >= 0 else ""
        return worker_samples(
            __version__,
            (self._store.name, self._config.host, name),
            self._shared.progress,
            self._shared.step_totals,
            time.monotonic(),
            leads=leader is not None and leader.worker == worker,
            connected=self._store.session.connected,
        )


# ------------------------------------------------------------
# Connect a worker's training thread to the policy of its job, and to its scaling profile.


class PolicyInZooKeeper:
    def __init__(
        self, nodes: PolicyNodes, away: Callable[[], bool], wake: Callable[[], None]
    ) -> None:
        self._nodes = nodes
        self._away = away
        self._wake = wake
        self._lock = threading.Lock()
        self._proposed: JobPolicy | None = None
        self._learned: ScalingProfile | None = None

    def propose(self, policy: JobPolicy) -> None:
        """Propose `policy`; it is dropped with a warning if the job has another one."""
        with self._lock:
            first = self._proposed = self._proposed or policy
        _warn_of_another(first, policy)
        self._wake()

    def learned(self) -> Mapping[str, Any]:
        """Read the job's scaling profile from ZooKeeper; {}: it is away, or the job is gone."""
        with suppress(CoordinationError, UnknownJob):
            if not self._away():
                return self._nodes.learned().to_json()
        return {}

    def put_learned(self, learned: Mapping[str, Any]) -> None:
        """Let the daemon thread write a checkpoint's profile, if the job has measured nothing."""
        try:
            read = ScalingProfile.from_json(learned)
        except CoordinationError as error:  # of another version of edl, perhaps
            logger.warning("the job begins without what its checkpoint had learned: %s", error)
            return
        with self._lock:
            self._learned = read
        self._wake()

    def write(self) -> None:
        with self._lock:
            proposed, learned = self._proposed, self._learned
        if proposed is not None:
            _warn_of_another(self._nodes.propose(proposed), proposed)
        if learned is not None:
            self._nodes.put_learned(learned)
        # Not what has come meanwhile.
        with self._lock:
            if self._proposed is proposed:
                self._proposed = None
            if self._learned is learned:
                self._learned = None


def _warn_of_another(stands: JobPolicy, proposed: JobPolicy) -> None:
    if stands.text != proposed.text:
        logger.warning(
            "the job follows the policy of %s, so that of %s counts for nothing",
            stands.source,
            proposed.source,
        )


# ------------------------------------------------------------
# Messages of a script's workers before the training. Workers may die and be replaced meanwhile,
# too.


FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.5  # between two tries


def exchange_before_training(
    store: JobStore, shared: SharedState, limit_s: float, number: int, payload: bytes
) -> list[bytes] | None:
    """Return the messages of a collective in rank order; None: the job trains, and had none."""
    clock = shared.clock
    deadline, pause_s = clock.now_s() + limit_s, FIRST_PAUSE_S
    while True:
        shared.check()
        late = clock.now_s() > deadline
        try:
            snapshot = store.snapshot()
            members = snapshot.participants
            takes_part = shared.worker in members
            if takes_part:
                answer = store.script_exchange.send(number, shared.worker, payload, members)
            else:
                answer = store.script_exchange.read(number)
            if answer is not None or (not takes_part and snapshot.status.step > 0):
                return answer
        except CoordinationError:
            if late:
                raise
        except UnknownJob as error:
            with suppress(CoordinationError):  # whether it was lost is unknown without ZooKeeper
                if late or not store.was_lost(error):
                    raise
        else:
            if snapshot.job.state.over:
                phrase = snapshot.job.state.phrase
                raise JobFailed(f"the job ended before its training: it {phrase}")
            if late:
                raise JobFailed(
                    f"a collective of the script before its training was not called by all workers "
                    f"within {limit_s:g} s"
                )
        clock.sleep(pause_s)
        pause_s = min(LONGEST_PAUSE_S, 1.5 * pause_s)


# ------------------------------------------------------------
# A worker that does not answer may be stuck in a library call that never releases Python's lock
# (the GIL). Python's faulthandler writes from the signal handler itself, in C, and takes no lock.


def offer_stacks(path: str, number: int) -> None:
    if not path or not number or signal.getsignal(number) is not signal.SIG_DFL:
        return
    try:
        # That the file is there tells the agent that it may send the signal.
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)  # for good
        faulthandler.register(number, file=file, all_threads=True)
    except (OSError, ValueError, RuntimeError) as error:
        logger.warning("a worker that freezes will not say where: %s: %s", path, error)


class Outage:
    def __init__(self) -> None:
        self._since: float | None = None
        self.from_step = -1  # the newest step when the last outage began; -1: there was none

    def begin(self, error: CoordinationError, step: int) -> None:
        if self._since is None:
            self._since, self.from_step = time.monotonic(), step
            logger.warning("coordination is interrupted, training goes on: %s", error)

    def end(self) -> tuple[float, str]:
        if self._since is None:
            return 0.0, ""
        away_s = time.monotonic() - self._since
        self._since, reason = None, f"ZooKeeper is back after {away_s:.1f} s"
        logger.info("%s", reason)
        return away_s, reason


AWAY_S = 1.0  # ZooKeeper's absence that is told of; less is a change of its leader


@dataclass(frozen=True)
class DaemonLimits:
    period_s: float = 0.5  # between two looks although no watch has fired
    breaking_period_s: float = 0.05  # the same while the ring is broken
    gather_s: float = 0.005  # news comes in bursts: one look for all of it
    probe_timeout_s: float = 0.5  # for the port of another candidate to answer


class Daemon:
    """The `Coordinator` of a worker that a launcher has started: a thread and an HTTP server."""

    is_shared = True

    def __init__(
        self,
        config: Config,
        shared: SharedState,
        ring: Ring,
        log: OwnLog | None = None,
        limits: DaemonLimits = DaemonLimits(),
    ) -> None:
        if config.job is None or config.zookeeper is None:
            raise CoordinationError("a daemon needs a job and a ZooKeeper")
        self._config = config
        # Of the job: as `config` has them, and as ZooKeeper has them after `start`.
        self.settings, self.sizes = config.job_settings, config.sizes
        self._shared = shared
        self._ring = ring
        self._limits = limits
        self._log = log
        if config.secret is None:
            raise ConfigError(
                "secret",
                f"EDL_JOB is {config.job} and EDL_SECRET is missing: workers are started by "
                "`edl run` or `edl join`, which give it to them",
            )
        self._session = Session(
            config.zookeeper,
            config.job_settings.session_timeout_s,  # its agent has given it that of the job
            config.connect_timeout_s,
            Access(config.job, config.secret),
        )
        self._store = JobStore(self._session, config.job)
        if config.run:  # the job may have been started again since our agent started us
            self._store.nodes.belong_to(config.run)
        self._pending_writes = PendingWrites(self._store, shared)
        self._candidate = Candidate(self._begin_term, lambda: self.run, limits.probe_timeout_s)
        self._lost_job = WorkersLostJob(self._store, logger.warning, limits.probe_timeout_s)
        key = http_key(config.secret, config.job)
        self._authenticator = Authenticator(key)
        self._ending = JobEndEndpoint(key, shared.announce)
        self._watch = ThreadWatch(ring)
        self._endpoints = WorkerEndpoints(
            config, shared, self._store, self._pending_writes, self._watch, ring
        )
        self._server = RendezvousServer(
            config.own_address, health=self._endpoints.health, guard=self._authenticator
        )
        self._wake = threading.Event()
        self.policy = PolicyInZooKeeper(self._store.policy, lambda: self.away, self._wake.set)
        self._lock = threading.Lock()
        self._stopping = False
        self._resigned = False
        self._thread = threading.Thread(target=self._run, name="edl-daemon", daemon=True)
        self._outage = Outage()
        self._period_s = limits.period_s
        self._newest = 0
        self._scope = ""
        self._incarnation = (0, 0)  # of the job that has our nodes
        self._ended_in: Generation | None = None  # the script has, and the others may not
        self.released_from = ""
        self._awaited_since = 0.0
        self.leave_requested = False  # set by a signal handler, which must take no lock

    def start(self) -> tuple[Member, Generation | None]:
        config = self._config
        self._watch.start()
        self._session.start()
        self._session.add_listener(lambda _state: self._wake.set())
        job, generation, _, leader, policy = self._store.watch_generation(self._wake.set)
        self._incarnation = self._store.incarnation
        self.settings, self.sizes = job.spec.settings, job.sizes
        if self.settings.chaos:
            endpoints.add_endpoints(self._server, self._session, self._ring)
        self._ending.add_to(self._server)
        self._endpoints.add_to(self._server)
        self._shared.leads(leader)
        self._shared.policy_is(policy)
        self._server.start()
        worker = self._store.members.new_id()
        self._shared.worker = self._authenticator.worker = self._lost_job.own = worker
        member = Member(
            id=worker,
            host=config.host,
            slot=config.slot,
            address=config.own_address,
            port=self._server.port,
            pid=os.getpid(),
            attempt_id=config.attempt_id,
            device=config.device,
        )
        self._pending_writes.register(member)
        self._thread.start()
        return member, generation

    def close(self) -> None:
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)
        self._server.close()
        self._session.close()

    # --- called by the training thread ---

    def resign(self) -> None:
        """Let the daemon thread remove this worker's nodes and close its port; events still go."""
        self._resigned = True
        self._wake.set()

    def script_of_job(self) -> ScriptOfJob:
        """Ask the ring's other workers, one after the other, for their model's shapes and fits."""
        generation = self._shared.newest(0)
        if generation is None:
            return ScriptOfJob()
        others = [member for member in generation.members if member.id != self._shared.worker]
        described = ScriptOfJob()
        # Those that join may not be in the ring yet.
        for member in sorted(others, key=lambda member: member.id in generation.joined):
            described = script_of(member) or described
            if described.is_described:
                break
        return described

    def campaign(self) -> None:
        member = self._pending_writes.member
        if member is not None:
            self._candidate.campaign(lambda: job_election(self._store.nodes, member.id))
        self._wake.set()

    def set_stage(
        self,
        stage: Stage,
        generation: int | None = None,
        newest_generation: int | None = None,
        fits: int | None = None,
    ) -> None:
        """Change the stage of this worker at once; None: as before."""
        self._pending_writes.change_member(
            lambda member: member.at(stage, generation, newest_generation, fits)
        )
        self._wake.set()

    def report_broken(self, failure: RingFailure) -> None:
        self._pending_writes.change_member(lambda member: replace(member, broken=failure))
        self._wake.set()

    @property
    def run(self) -> str:
        return self._store.nodes.run

    def put_saved(self, directory: str, step: int) -> None:
        self._pending_writes.put_saved(directory, step)
        self._wake.set()

    def last_step(self) -> int:
        return self._store.status().step

    def exchange_before_training(self, number: int, payload: bytes) -> list[bytes] | None:
        limit_s = self.settings.elastic_timeout_s
        return exchange_before_training(self._store, self._shared, limit_s, number, payload)

    def end_job(self, end: JobEnd, event: Event | None = None) -> None:
        """Let the daemon thread write how the job ended, unless another worker has written it."""
        self._pending_writes.end_job(end, event)
        self._wake.set()

    def release_others(self, generation: Generation | None) -> None:
        """Let the daemon break this ring once a member waits for this worker, which has ended."""
        self._ended_in = generation

    def flush(self, timeout_s: float) -> bool:
        """Wait until the reports and events of this worker are written; False: not in time."""
        self._wake.set()
        return self._pending_writes.flush(timeout_s)

    @property
    def away(self) -> bool:
        return not self._session.connected

    @property
    def wake(self) -> threading.Event:
        return self._wake

    # --- the thread ---

    def _run(self) -> None:
        try:
            self._listen()
        except Exception as error:  # a bug of ours, whatever it is
            logger.exception("the daemon of this worker has failed; please report this")
            # Without its daemon this worker would not learn of new generations.
            self._shared.evict(f"its daemon has failed: {error!r}")
            self._ring.break_()

    def _listen(self) -> None:
        """Read and write ZooKeeper until `close`, or until the job is gone."""
        while not self._stopping:
            if self._wake.wait(self._period_s):
                time.sleep(self._limits.gather_s)
            self._wake.clear()
            self._poll_log()
            self._release_others()
            try:
                self._turn()
                self._lost_job.is_back()
                away_s, reason = self._outage.end()
                # Rank 0 logs the outage for the job.
                in_ring = self._shared.progress.generation
                if away_s >= AWAY_S and in_ring and self._ring.place.rank == 0:
                    details = ZookeeperBackDetails(round(away_s, 3), self._outage.from_step)
                    self._report(details, reason)
            except CoordinationError as error:
                self._shared.request_batch(0)  # a worker that is cut off may lead no more
                self._outage.begin(error, self._shared.progress.step)
            except UnknownJob as error:
                # Lost, and restored when it is this worker's turn; else it was removed.
                step = self._shared.progress.step
                if self._lost_job.handle(error, f"w{self._lost_job.own}", step):
                    continue
                if self._shared.job_state.over:  # the script may still evaluate, on its own ring
                    logger.info("this worker follows its job no more, which is over: %s", error)
                    return
                self._shared.evict(f"its job is gone: {error}")
                self._ring.break_()
                return
        # The last reports, and then no node of this worker is left; a failure is only logged.
        try:
            self._pending_writes.write(as_member=not self._resigned)
            self._candidate.resign()
            self._pending_writes.remove_member()
            # A job that is being stopped, without an agent and a worker: nobody else ends it.
            snapshot = self._store.snapshot()
            job, stopping = snapshot.job, (JobState.STOPPING,)
            if job.state in stopping and not snapshot.hosts and not snapshot.members:
                end = stopped_outcome(snapshot, job.reason)
                self._store.set_job_state(end.state, end.reason, end.exit_code, only_from=stopping)
        except (CoordinationError, UnknownJob) as error:
            logger.info("the session ends without clean-up: %s", error)

    def _poll_log(self) -> None:
        """Begin a new log file at the limit `log_mb`; log an event if lines are left out."""
        member = self._pending_writes.member
        if self._log is None or member is None:
            return
        self._log.rotate(self._config.log_mb * 10**6)
        if failure := self._log.take_failure():
            path = self._log.path
            details = LogFailedDetails(member.name, member.host, path, mount_point(path))
            self._report(details, f"{member.name} trains on without its log: {failure}")
        if lost := self._log.take_lost():
            reason = f"{member.name} writes its log again; {lost} bytes of its output are lost"
            self._report(LogResumedDetails(member.name, member.host, lost), reason)

    def _report(self, details: Details, reason: str) -> None:
        at = self._newest, self._shared.progress.step
        self._shared.log(Event(time.time(), *at, reason, details))

    def _turn(self) -> None:
        """Write this worker's reports to ZooKeeper, read the job's state, and lead if elected."""
        if not self._session.connected:
            if self._resigned:
                self._server.close()
            raise CoordinationError("not connected to ZooKeeper")
        if self._incarnation != self._store.incarnation:
            # The nodes of this worker are gone; the worker is not.
            self._incarnation = self._store.incarnation
            self._candidate.end_term()
            self._pending_writes.change_member(lambda member: member)
        if self._resigned:
            self._candidate.resign()
            self._pending_writes.write(as_member=False)
            self._pending_writes.remove_member()
            # The others wait for a worker whose port answers, and this one will report no more.
            self._server.close()
            return
        if self.leave_requested:
            self.leave_requested = False
            self.set_stage(Stage.LEAVING)
        self._pending_writes.write(as_member=True)
        self.policy.write()
        job, generation, evicted, leader, policy = self._store.watch_generation(self._wake.set)
        if self._incarnation != self._store.incarnation:
            self._wake.set()
        self._shared.leads(leader)
        self._shared.policy_is(policy)
        self._shared.evicted = frozenset(evicted)
        member = self._pending_writes.member
        if member is not None and member.id in evicted:
            self._shared.evict(evicted[member.id])
            self._candidate.resign()
        self._shared.preempt(job.reason, job.end_within_s)
        if generation is not None and generation.number > self._newest:
            self._newest = self._endpoints.newest_generation = generation.number
            # Workers that still wait in an older rendezvous wait in vain: this fails them now.
            self._server.announce(generation.scope)
            self._scope = generation.scope
            self._shared.announce(generation)
            self._ending.current = generation
        self._shared.job_is(job.state, job.reason)
        self.sizes = job.sizes  # edl-discover may have said others
        self._break_ring_of(self._shared.evicted)
        if member is not None and self._candidate.remove_dead(
            member, generation, evicted, self._ring.is_building
        ):
            self._period_s = self._limits.breaking_period_s
        if job.state.over or (generation is not None and not generation.members):
            self._candidate.end_term()  # nothing is left to decide
        else:
            self._elect()

    def _elect(self) -> None:
        """Take part in the election, lead if elected, and set when to read ZooKeeper again."""
        due_s = max(self._candidate.turn(self._wake.set), self._limits.breaking_period_s)
        self._period_s = min(self._period_s, due_s)

    def _release_others(self) -> None:
        ended_in, worker = self._ended_in, self._shared.worker
        if ended_in is None or self._ring.membership[0] != ended_in.number:
            return
        others = (member for member in ended_in.members if member.id != worker)
        ports = {member.id: (member.address, member.port) for member in others}
        made = self._shared.progress.step, self._ring.exchanges, self._ring.updates
        answers = ask_all(ports, self._limits.probe_timeout_s).values()
        doing = next(
            (w for one in answers if (w := waits_for_ended(one.report, ended_in.number, *made))), ""
        )
        self.released_from, before = doing, self.released_from
        now_s = time.monotonic()
        self._awaited_since = self._awaited_since if before and doing else now_s
        late = doing != FOR_COLLECTIVE or now_s - self._awaited_since >= UNSERVED_S
        if doing and late and self._ended_in is ended_in:
            self._ended_in = None
            self._ring.break_(ended_in.number)

    def _break_ring_of(self, evicted: frozenset[int]) -> None:
        """Break this worker's ring if it has an evicted worker, or is outdated as it is built."""
        number, members = self._ring.membership
        lost = bool(evicted & set(members))
        # Each call breaks it again, since a ring that is being built opens new connections.
        if lost or (self._ring.is_building and number < self._newest):
            self._ring.break_(number)
            self._period_s = self._limits.breaking_period_s
        else:
            self._period_s = self._limits.period_s
        if lost and self._scope and number == self._newest:
            self._server.close_scope(self._scope)  # whoever waits in it waits for the lost one

    def _begin_term(self, leadership: Leadership) -> LeaderTerm:
        member = self._pending_writes.member
        assert member is not None
        self._shared.learning.taken()  # of steps that the leader before has recorded
        term = LeaderTerm(
            replace(self._config, sizes=self.sizes, job_settings=self.settings),
            self._store,
            leadership,
            member.id,
            lambda: self._shared.progress,
            self._watch.look,
            lambda: replace(self._shared.ring, learning=self._shared.learning.taken()),
            self._shared.log,
            self._pending_writes.events.write,
            self._shared.request_batch,
        )
        self._shared.leads(Leader(leadership.term, member.id))
        return term
