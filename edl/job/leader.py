"""Do a daemon's work while its worker leads: read the job's state, decide, write the decision, log.

All that the next leader needs is in ZooKeeper; only for how long each fact has been true it
measures again.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from edl import failpoints
from edl.config import Config
from edl.errors import CoordinationError, LeadershipLost
from edl.events import (
    Details,
    DrainDetails,
    Event,
    EvictedDetails,
    GenerationDetails,
    LeaderDetails,
    PausedDetails,
    PolicyDetails,
    StalledDetails,
)
from edl.http.client import Health, ask, ask_all
from edl.job import liveness, stall
from edl.job.borrowing import describe_returned, overdue
from edl.job.decision import Limits, MembershipDecision
from edl.job.liveness import USUAL, Ages, AgeTracker, LivenessLimits, RingIdle
from edl.job.membership import decide
from edl.job.policy_loop import PolicyLoop
from edl.job.snapshot import GONE, Snapshot, reports_broken
from edl.job.stall import Activity, Report, Stall, StallLimits
from edl.policy.stragglers import RingReport
from edl.records import (
    Generation,
    Liveness,
    Member,
    Stage,
    TrainingStatus,
    WorkerProgress,
    is_status_due,
)
from edl.ring.rendezvous import new_scope
from edl.zookeeper.election import Election, Leadership
from edl.zookeeper.paths import candidate_worker
from edl.zookeeper.store import DecisionWriter, JobStore

logger = logging.getLogger(__name__)


# ------------------------------------------------------------
# Ask the workers over HTTP which are dead and which hold up the job; `liveness` and `stall` decide
# what the answers mean.


@dataclass(frozen=True)
class ProgressReport:
    worker: int
    progress: WorkerProgress  # `updated_at` by the leader's clock; generation 0: in no ring yet


class FailureDetector:
    """The checks that a leader makes on the workers of its job; only its daemon thread uses it."""

    def __init__(
        self,
        config: Config,
        worker: int,
        run: str,
        progress: Callable[[], WorkerProgress],
        activity: Callable[[], Activity],
        limits: LivenessLimits = USUAL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._own_progress = progress
        self._worker = worker
        self._run = run  # the start of the job that all belong to
        self._limits = limits
        settings = config.job_settings
        self._stall_limits = StallLimits(settings.stall_s, config.frozen_s, settings.stall_limit_s)
        self._clock = clock
        self._since = clock()
        self._own_activity = activity
        self._newest_report = ProgressReport(worker, WorkerProgress(updated_at=self._since))
        self._outside = False  # whether this worker is not in the ring and never was in one
        self._silent_since: dict[int, float] = {}  # when a worker was last asked in vain
        self._unresponsive_since: dict[int, float] = {}  # since when a worker was, in this stall
        self._answered: dict[int, float] = {}  # when a worker was last asked with success

    @property
    def newest_report(self) -> ProgressReport:
        """The newest progress that this leader knows: its own, once it has been in a ring."""
        own = self._own_progress()
        return ProgressReport(self._worker, own) if own.generation else self._newest_report

    def update(self, snapshot: Snapshot) -> None:
        """Ask the members of the ring for the job's progress, if this leader is a newcomer."""
        generation = snapshot.generation
        ring = (generation.previous or generation.members) if generation is not None else ()
        never_in = not self._own_progress().generation
        self._outside = never_in and all(member.id != self._worker for member in ring)
        if not self._outside:
            return
        ports = {member.id: (member.address, member.port) for member in ring}
        answers, now_s = ask_all(ports, self._limits.answer_s), self._clock()
        for worker, health in answers.items():
            progress = _progress(health, now_s)
            if progress is not None and progress.generation:
                self._newest_report = ProgressReport(worker, progress)
                return

    def dead(
        self, snapshot: Snapshot, generation_s: float
    ) -> tuple[dict[int, str], frozenset[int]]:
        idle = self._idle()
        now = self._clock()
        heard_s = {worker: now - at for worker, at in self._answered.items()}
        asked = liveness.workers_to_probe(snapshot, self._worker, generation_s, idle, heard_s)
        dead: dict[int, str] = {}
        silent = set()
        for worker, health in sorted(self._ask(asked, snapshot).items()):
            answer = health.answer(self._run)
            place = "{}:{}".format(*asked[worker])
            if answer.liveness is Liveness.SILENT:
                silent.add(worker)
            if (proof := liveness.proof(worker, place, answer, snapshot, idle)) is not None:
                dead[worker] = proof
            elif answer.liveness is Liveness.ALIVE:
                self._answered[worker] = self._clock()
        return dead, frozenset(silent)

    def stall(self, snapshot: Snapshot) -> Stall | None:
        """Return which workers hold up a ring that should train, or None if there is no stall."""
        generation, progress = snapshot.generation, self.newest_report.progress
        quiet_s = self._clock() - max(progress.updated_at, self._since)
        if (
            snapshot.job.state.over
            or generation is None
            or not snapshot.job.sizes.enough(len(generation.members))  # it pauses for replacements
            or not stall.stands_still(quiet_s, progress.median_step_s, self._stall_limits)
        ):
            self._unresponsive_since.clear()
            return None
        members = [member for member in generation.members if member.id not in snapshot.evicted]
        if not members:  # all are dead: that is no stall
            return None
        ports = {s.id: (s.address, s.port) for s in members if s.id != self._worker}
        answers, now = ask_all(ports, self._limits.answer_s), self._clock()
        gone = {w for w, health in answers.items() if health.liveness is Liveness.REFUSED}
        members = [member for member in members if member.id not in gone]
        if not members:  # dead, or through: that is no stall
            return None
        silent = {w for w, health in answers.items() if health.liveness is Liveness.SILENT}
        self._unresponsive_since = {
            worker: self._unresponsive_since.get(worker, now) for worker in silent
        }
        reports = []
        for member in members:
            worker, rank = member.id, generation.worker_ids.index(member.id)
            if worker == self._worker:
                activity: Activity | None = self._own_activity()
                made: WorkerProgress | None = self._own_progress()
            else:
                activity, made = _activity(answers[worker]), _progress(answers[worker], now)
            silent_s = now - self._unresponsive_since.get(worker, now)
            step = made.step if made is not None else 0
            reports.append(Report(worker, rank, member.host, activity, step, silent_s))
        if stall.are_after_fit(reports, quiet_s, self._stall_limits):
            return None
        return stall.judge_stall(reports, quiet_s, progress.step, self._stall_limits)

    def _ask(self, ports: Mapping[int, tuple[str, int]], snapshot: Snapshot) -> dict[int, Health]:
        # A worker without a session that was asked in vain lately counts as silent, unasked.
        since = self._clock() - self._limits.silence_s
        members = {member.id for member in snapshot.members}
        silent = {w for w, at in self._silent_since.items() if at > since and w not in members}
        asked = {worker: at for worker, at in ports.items() if worker not in silent}
        answers, now = ask_all(asked, self._limits.answer_s), self._clock()
        mute = (w for w, health in answers.items() if health.liveness is Liveness.SILENT)
        self._silent_since |= dict.fromkeys(mute, now)
        return answers | {w: Health(Liveness.SILENT) for w in ports if w in silent}

    def _idle(self) -> RingIdle:
        progress, doing = self.newest_report.progress, self._own_activity().doing
        observed = f"; in step {progress.step + 1} w{self._worker} is {doing}"
        # A newcomer that has heard of no step may be the one that is cut off.
        deaf = self._outside and not progress.generation
        least_s = self._config.job_settings.start_timeout_s if deaf else None
        quiet_s = self._clock() - progress.updated_at
        return RingIdle(quiet_s, progress.median_step_s, observed, least_s, self._limits)


def _activity(health: Health) -> Activity | None:
    if health.liveness is not Liveness.ALIVE:
        return None
    try:
        return Activity.from_json(health.report.get("activity", {}))
    except CoordinationError:
        return None


def _progress(health: Health, now_s: float) -> WorkerProgress | None:
    """Return a worker's progress from its answer, with the time of its last step by our clock."""
    report: Mapping[str, object] = health.report
    quiet_s = report.get("quiet_s")
    if not isinstance(quiet_s, int | float):
        return None
    try:
        return replace(WorkerProgress.from_json(report), updated_at=now_s - quiet_s)
    except CoordinationError:
        return None


EVENTS_KEPT = 2000
EVICTED_KEPT = 20  # evictions of exited workers: agents read there why a process ended


class LeaderTerm:
    def __init__(
        self,
        config: Config,
        store: JobStore,
        leadership: Leadership,
        worker: int,
        progress: Callable[[], WorkerProgress],
        activity: Callable[[], Activity],
        ring: Callable[[], RingReport],
        log: Callable[[Event], None],  # queues an event, which `write_events` writes
        write_events: Callable[[], None],
        request_batch: Callable[[int], None] = lambda _: None,  # the global batch; 0: none
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._store = store
        self._decisions = DecisionWriter(store.nodes, leadership)
        self._log = log
        liveness = replace(USUAL, session_s=store.session.granted_s)
        self._detector = FailureDetector(
            config, worker, store.nodes.run, progress, activity, liveness, clock
        )
        self._write_events = write_events
        self._stall = ""
        self._paused = 0  # the last generation that was said to pause
        self._named: set[int] | None = None  # in this stall; None: the ring trains
        self._clock = clock
        self._ages = AgeTracker(clock())
        self._reason = ""
        self._status_at = 0.0
        self._reported_generation = 0  # whose ring the last status said to train
        self._rate = _Rate()
        self._policy_says = ""
        self._limits = Limits(
            start_s=config.job_settings.start_timeout_s,
            prepare_s=config.job_settings.prepare_timeout_s,
            gather_s=config.job_settings.gather_timeout_s,
            leave_grace_s=config.job_settings.leave_grace_s,
            notice_s=config.job_settings.switch_timeout_s,
            report_s=config.job_settings.repair_timeout_s,
            leave_gather_s=config.job_settings.leave_gather_s,
        )
        wait_s = self._limits.start_s + self._limits.prepare_s
        self._policy_loop = PolicyLoop(store, wait_s, ring, clock)
        self._request_batch = request_batch
        leads = f"w{worker} leads in term {leadership.term}"
        log(self._event(LeaderDetails(f"w{worker}"), leads))

    @property
    def term(self) -> int:
        return self._decisions.term

    def turn(self, wake: Callable[[], None]) -> float:
        """Read the job, decide and write once; return the seconds until the next turn is due."""
        # Infinite: as often as usual. `wake` must not block: another thread calls it, too, once the
        # state that was read has changed.
        self._write_events()
        snapshot = self._store.snapshot(wake)
        ages = self._ages.observe(snapshot, self._clock())
        self._detector.update(snapshot)
        dead, silent = self._detector.dead(snapshot, ages.generation_s)
        if (stall := self._detector.stall(snapshot)) is None:
            self._stall, self._named = "", None
        else:
            if self._named is None or not self._named.issuperset(stall.culprits):
                logger.warning("%s", stall.reason)
                workers = tuple(f"w{worker}" for worker in stall.culprits)
                # Under the fence of this term: a leader that was suspended takes the time that it
                # missed for a stall, while another one leads the ring on without it.
                self._decisions.put_event(self._event(StalledDetails(workers), stall.reason))
            self._stall, self._named = stall.reason, {*(self._named or ()), *stall.culprits}
            dead = {**stall.evict, **dead}
        late = overdue(snapshot, ages.reclaims_s)
        decision = decide(snapshot, self.term, ages, self._limits, dead, silent, late)
        if decision.acts:
            decision = self._completed(decision)
            failpoints.reached("deciding")
            self._decisions.carry_out(decision, [*self._events_of(decision, snapshot, ages)])
            failpoints.reached("decided")
            wake()
        else:
            self._follow_policy(snapshot, ages, wake)
        generation, paused = snapshot.generation, snapshot.paused
        if paused and generation is not None and generation.number != self._paused:
            self._paused = generation.number
            left = PausedDetails(len(generation.members), snapshot.job.sizes.min_np)
            self._log(self._event(left, paused, generation.number))
        reason = f"{paused}; {decision.reason}" if paused else decision.reason
        if reason != self._reason:
            self._reason = reason
            logger.info("term %d: %s", self.term, reason)
        self._put_status(snapshot)
        return math.inf if decision.again_s is None else decision.again_s

    def _follow_policy(self, snapshot: Snapshot, ages: Ages, wake: Callable[[], None]) -> None:
        """Let the job's policy change the size, the batch or a slow worker; write the change."""
        report = self._detector.newest_report
        sample, left = report.progress.sample(report.worker), report.progress.left
        rate = round(self._rate.newest, 1)
        result = self._policy_loop.turn(snapshot, sample, left, rate)
        self._policy_says = result.says
        self._request_batch(result.batch)
        if result.failed:
            np = len(snapshot.newest_members)
            details = PolicyDetails(np, np, rate, failed=True)
            event = self._event(details, f"the policy is off: {result.failed}")
            self._decisions.put_policy(
                snapshot.policy, replace(snapshot.policy, off=result.failed), event
            )
            wake()
            return
        news = [self._event(details, reason) for details, reason in result.news]
        if result.decision is not None:
            decision = self._completed(result.decision)
            events = [*news, *self._events_of(decision, snapshot, ages)]
            self._decisions.carry_out(decision, events)
            wake()
        else:
            for event in news:
                self._log(event)
        if result.learned is not None:
            self._decisions.put_learned(result.learned)
            self._policy_loop.written(result.learned)

    @staticmethod
    def _completed(decision: MembershipDecision) -> MembershipDecision:
        """Return `decision` with a time and a random scope, which a pure decision has not."""
        if decision.change and decision.change.moves:
            decision = replace(decision, change=decision.change.at(time.time()))
        if decision.generation is None:
            return decision
        # Nobody can guess it: it begins the keys of this generation in the rendezvous store.
        scope = new_scope(decision.generation.number)
        return replace(decision, generation=replace(decision.generation, scope=scope))

    def _events_of(
        self, decision: MembershipDecision, snapshot: Snapshot, ages: Ages
    ) -> Iterator[Event]:
        if decision.generation is not None:
            new = decision.generation
            failures = {}
            if new.repairs and snapshot.generation is not None:
                failures = {
                    f"w{member.id}": str(member.broken)
                    for member in snapshot.members
                    if member.id not in snapshot.evicted
                    and reports_broken(member, snapshot.generation)
                }
            hosts: dict[str, tuple[str, ...]] = {}
            for member in new.members:
                if member.id in new.joined:
                    hosts[member.host] = (*hosts.get(member.host, ()), f"w{member.id}")
            written = GenerationDetails(
                term=new.term,
                members=tuple(f"w{worker}" for worker in new.worker_ids),
                joined=tuple(f"w{worker}" for worker in new.joined),
                left=tuple(f"w{worker}" for worker in new.left),
                repair=new.repairs,
                failures=failures,
                samples_per_s=round(self._rate.newest, 1),
                hosts=hosts,
            )
            yield self._event(written, new.reason, new.number)
        if decision.change and decision.change.moves:
            yield self._event(decision.change.details, str(decision.change))
        for one in decision.reclaimed:
            yield self._event(*describe_returned(one, ages.reclaims_s.get(one, 0.0)))
        for worker, reason in sorted(decision.evict.items()):
            ended = f"has ended{reason.removeprefix(GONE)}"
            what = ended if reason.startswith(GONE) else f"was evicted: {reason}"
            yield self._event(EvictedDetails(f"w{worker}"), f"w{worker} {what}")
        for answer in decision.answers:
            yield self._event(DrainDetails(f"w{answer.worker}", answer.accepted), answer.outcome)

    def _event(self, details: Details, reason: str, generation: int | None = None) -> Event:
        progress = self._detector.newest_report.progress
        number = progress.generation if generation is None else generation
        return Event(time.time(), number, progress.step, reason, details)

    def _put_status(self, snapshot: Snapshot) -> None:
        now, period_s = self._clock(), self._config.job_settings.status_period_s
        report = self._detector.newest_report
        worker, progress = report.worker, report.progress
        if not is_status_due(progress, self._reported_generation, now - self._status_at, period_s):
            return
        self._status_at = now
        if progress.trains:
            self._reported_generation = progress.generation
        reason = self._stall or self._reason
        if progress.generation == 0 and snapshot.status.updated_at_s:
            # A newcomer leads a job whose workers are all dead: how far they were remains true.
            before = replace(snapshot.status, samples_per_s=0.0, progress_sample=None)
            self._decisions.put_status(replace(before, reason=reason, updated_at_s=time.time()))
            return
        status = TrainingStatus.of(
            progress,
            samples_per_s=round(self._rate.of(worker, progress.samples_total, now), 1),
            quiet_s=round(max(0.0, now - progress.updated_at), 3),
            progress_sample=progress.sample(worker),
            policy=self._policy_says,
            reason=reason,
            updated_at_s=time.time(),
        )
        self._decisions.put_status(status)
        self._store.events.trim(EVENTS_KEPT)
        self._store.members.forget_evicted(snapshot.forgettable(EVICTED_KEPT))


class _Rate:
    """A meter of the training speed over about the last 3 seconds, by one worker's counts."""

    WINDOW_S = 3.0

    def __init__(self) -> None:
        self._worker = -1
        self._points: list[tuple[float, int]] = []
        self.newest = 0.0  # in samples per second

    def of(self, worker: int, total: int, now_s: float) -> float:
        """Add a worker's count of all samples since it joined; return the speed per second."""
        if worker != self._worker:
            self._worker = worker
            self._points.clear()
        self._points.append((now_s, total))
        while len(self._points) > 2 and now_s - self._points[0][0] > self.WINDOW_S:
            self._points.pop(0)
        (first_at, first), (last_at, last) = self._points[0], self._points[-1]
        self.newest = (last - first) / (last_at - first_at) if last_at > first_at else 0.0
        return self.newest


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
        with self._lock:
            if self._election is None:
                self._election = make()

    def end_term(self) -> None:
        """Drop this worker's term, but stay a candidate: the job was restored, or is over."""
        self._term = None

    def resign(self) -> None:
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
        member: Member,
        generation: Generation | None,
        given_up: Collection[int],
        is_building: bool,
    ) -> bool:
        """Remove dead candidates ahead while this worker waits for a ring; return if to repeat."""
        election = self._election
        if generation is None or election is None:
            return False
        stuck = member.broken is not None and member.broken.generation >= generation.number
        stuck |= is_building
        if not stuck and member.stage is not Stage.READY:  # a newcomer has no ring to go on with
            return False
        # Else nobody could lead until the sessions of the dead candidates end.
        members = {member.id: member for member in (*generation.members, *generation.previous)}
        for name in election.ahead():
            worker = candidate_worker(name)
            dead = worker in given_up
            if not dead and (other := members.get(worker)) is not None:
                answer = ask(other.address, other.port, self._probe_timeout_s).answer(self._run())
                dead = liveness.gone(other.id, f"port {other.port}", answer) is not None
            if worker == member.id or not dead:
                return stuck
            logger.info("the candidate %s is gone", name)
            election.remove(name)
        return False
