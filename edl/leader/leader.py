"""Do a daemon's work while its worker leads: read the job's state, decide, write the decision, log.

The decision is made by :func:`edl.core.job.membership.decide`, not here. All that the next leader
needs is in ZooKeeper; only how long each fact about the job has been true it measures again. The
main entry is :class:`LeaderTerm`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from edl import failpoints
from edl.config import Config
from edl.coordination.decisions import DecisionWriter
from edl.coordination.election import Leadership
from edl.coordination.job_store import JobStore
from edl.core.events import (
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
from edl.core.job.ages import Ages, AgeTracker
from edl.core.job.borrowing import describe_returned, overdue
from edl.core.job.decision import Limits, MembershipDecision
from edl.core.job.liveness import USUAL
from edl.core.job.membership import decide
from edl.core.job.ring_failure import broke
from edl.core.job.stall import Activity
from edl.core.policy.ring_report import RingReport
from edl.core.progress import TrainingStatus, WorkerProgress, is_status_due
from edl.core.records import Generation
from edl.core.snapshot import GONE, Snapshot
from edl.leader.failure_detector import FailureDetector
from edl.leader.policy_loop import PolicyLoop
from edl.ring.rendezvous import new_scope

logger = logging.getLogger(__name__)

EVENTS_KEPT = 2000
EVICTED_KEPT = 20  # evictions of exited workers: agents read there why a process ended


class LeaderTerm:
    """The work of a leader during one term; only the daemon thread uses it."""

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
        self._told_generation = 0  # whose ring the last status said to train
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
        ages = self._ages.look(snapshot, self._clock())
        self._detector.look(snapshot)
        dead, silent = self._detector.dead(snapshot, ages.generation_s)
        dead = self._look_for_stall(snapshot) | dead
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
        paused = self._look_for_pause(snapshot)
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
        found = self._policy_loop.turn(snapshot, sample, left, rate)
        self._policy_says = found.says
        self._request_batch(found.batch)
        if found.failed:
            np = len(snapshot.generation.members) if snapshot.generation else 0
            off = replace(snapshot.policy, off=found.failed)
            told = self._event(
                PolicyDetails(np, np, rate, failed=True), f"the policy is off: {found.failed}"
            )
            self._decisions.put_policy(snapshot.policy, off, told)
            wake()
            return
        news = [self._event(details, reason) for details, reason in found.news]
        if found.decision is not None:
            made = self._completed(found.decision)
            self._decisions.carry_out(made, [*news, *self._events_of(made, snapshot, ages)])
            wake()
        else:
            for event in news:
                self._log(event)
        if found.learned is not None:
            self._decisions.put_learned(found.learned)
            self._policy_loop.written(found.learned)

    def _look_for_stall(self, snapshot: Snapshot) -> dict[int, str]:
        """Return whom to evict for a stall; log when it begins or a further worker causes it."""
        stall = self._detector.stall(snapshot)
        if stall is None:
            self._stall, self._named = "", None
            return {}
        if self._named is None or not self._named.issuperset(stall.culprits):
            logger.warning("%s", stall.reason)
            workers = tuple(f"w{worker}" for worker in stall.culprits)
            # Under the fence of this term: a leader that was suspended takes the time that it
            # missed for a stall, while another one leads the ring on without it.
            self._decisions.put_event(self._event(StalledDetails(workers), stall.reason))
        self._stall, self._named = stall.reason, {*(self._named or ()), *stall.culprits}
        return dict(stall.evict)

    def _look_for_pause(self, snapshot: Snapshot) -> str:
        """Return why the job pauses, if it has too few workers; log that once in a generation."""
        generation, paused = snapshot.generation, snapshot.paused
        if paused and generation is not None and generation.number != self._paused:
            self._paused = generation.number
            left = PausedDetails(len(generation.members), snapshot.job.sizes.min_np)
            self._log(self._event(left, paused, generation.number))
        return paused

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
                    if member.id not in snapshot.evicted and broke(member, snapshot.generation)
                }
            written = GenerationDetails(
                term=new.term,
                members=tuple(f"w{worker}" for worker in new.worker_ids),
                joined=tuple(f"w{worker}" for worker in new.joined),
                left=tuple(f"w{worker}" for worker in new.left),
                repair=new.repairs,
                failures=failures,
                samples_per_s=round(self._rate.newest, 1),
                hosts=_hosts_of(new),
            )
            yield self._event(written, new.reason, new.number)
        if decision.change and decision.change.moves:
            yield self._event(decision.change.details, str(decision.change))
        for one in decision.reclaimed:
            yield self._event(*describe_returned(one, ages.reclaims_s.get(one, 0.0)))
        for worker, reason in sorted(decision.evict.items()):
            said = f"has ended{reason.removeprefix(GONE)}"
            said = said if reason.startswith(GONE) else f"was evicted: {reason}"
            yield self._event(EvictedDetails(f"w{worker}"), f"w{worker} {said}")
        for answer in decision.answers:
            yield self._event(DrainDetails(f"w{answer.worker}", answer.accepted), answer.outcome)

    def _event(self, details: Details, reason: str, generation: int | None = None) -> Event:
        progress = self._detector.newest_report.progress
        number = progress.generation if generation is None else generation
        return Event(time.time(), number, progress.step, reason, details)

    def _put_status(self, snapshot: Snapshot) -> None:
        """Write the summary of the training to ZooKeeper, if it is due."""
        now, period_s = self._clock(), self._config.job_settings.status_period_s
        report = self._detector.newest_report
        worker, progress = report.worker, report.progress
        if not is_status_due(progress, self._told_generation, now - self._status_at, period_s):
            return
        self._status_at = now
        if progress.trains:
            self._told_generation = progress.generation
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


def _hosts_of(new: Generation) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for member in new.members:
        if member.id in new.joined:
            found[member.host] = (*found.get(member.host, ()), f"w{member.id}")
    return found


class _Rate:
    """A meter of the training speed over about the last 3 seconds, by one worker's counts."""

    WINDOW_S = 3.0

    def __init__(self) -> None:
        self._worker = -1
        self._points: list[tuple[float, int]] = []
        self.newest = 0.0  # in samples per second

    def of(self, worker: int, total: int, now: float) -> float:
        """Add a worker's count of all samples since it joined; return the speed per second."""
        if worker != self._worker:
            self._worker = worker
            self._points.clear()
        self._points.append((now, total))
        while len(self._points) > 2 and now - self._points[0][0] > self.WINDOW_S:
            self._points.pop(0)
        (first_at, first), (last_at, last) = self._points[0], self._points[-1]
        self.newest = (last - first) / (last_at - first_at) if last_at > first_at else 0.0
        return self.newest
