"""What a leader does for its job's policy, turn by turn: its size, batch and stragglers.

Nothing is written here; what is to be, :class:`edl.leader.leader.LeaderTerm` writes, fenced as all
that a leader writes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from edl.coordination.job_store import JobStore
from edl.core.events import Details, GlobalBatchDetails, PolicyDetails, StragglerDetails
from edl.core.job.decision import MembershipDecision
from edl.core.policy.batch import Choice, choose
from edl.core.policy.file import Policy, parse
from edl.core.policy.observation import Observation
from edl.core.policy.ring_report import RingReport
from edl.core.policy.scaling_profile import ScalingProfile
from edl.core.policy.stragglers import StragglerReport, data_part, slowest
from edl.core.progress import ProgressSample
from edl.core.records import JobPolicy, JobState, RequestedBy, Snapshot
from edl.errors import UsageError
from edl.leader.size_policy import SizePolicy
from edl.leader.straggler_mitigation import StragglerMitigation

logger = logging.getLogger(__name__)

UNTIMED = "{what} cannot count: the script reads its own data, so nobody knows the workers' times"

CHOICE_S = 5.0  # between two looks at the global batch

News = tuple[tuple[Details, str], ...]  # details of an event, and its reason


@dataclass(frozen=True)
class PolicyResult:
    """What a turn has come to.

    Attributes:
        says: the policy's last word; empty: the job has none.
        news: for the event log; together with the decision, if there is one.
        decision: to be carried out.
        learned: to be written, if it is due.
        batch: the global batch that is to be; 0: the script says it.
        failed: why the policy cannot go on; it is to be switched off.
    """

    says: str = ""
    news: News = ()
    decision: MembershipDecision | None = None
    learned: ScalingProfile | None = None
    batch: int = 0
    failed: str = ""


class PolicyLoop:
    """One leader's part in it; only its daemon thread calls it.

    Args:
        wait_s: for the replacement of a slow worker to come.
        ring: what this worker's training thread knows of the others.
    """

    def __init__(
        self,
        store: JobStore,
        wait_s: float,
        ring: Callable[[], RingReport],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._ring = ring
        self._kept = JobPolicy()
        self._policy: Policy | None = None
        self.size = SizePolicy(store, clock)
        self._stragglers = StragglerMitigation(wait_s, clock)
        self._clock = clock
        self._choice, self._choice_due_s = Choice(0, ""), clock()

    def turn(
        self,
        snapshot: Snapshot,
        now: ProgressSample | None,
        left: float | None,
        samples_per_s: float,
    ) -> PolicyResult:
        """Observe, and decide if the job has a policy.

        Args:
            now: how far the ring is; None: nobody has told.
            left: samples to train until the end of the job; None: nobody knows.
            samples_per_s: of all workers together, for the event log.
        """
        kept = snapshot.policy
        if (kept.text, kept.off) != (self._kept.text, self._kept.off):
            try:
                self._policy = parse(kept.text, kept.source) if kept.is_on else None
            except UsageError as error:
                return PolicyResult(failed=str(error))
            self._kept = kept
        may_follow, ring = self._may_follow(snapshot), self._ring()
        policy = self._policy if may_follow else None
        self.size.note(times=slowest(ring.times), data_part=data_part(ring.times))
        if ring.batching is not None:
            self.size.note(batching=ring.batching, step_batches=ring.step_batches)
        if ring.noise.steps:
            self.size.note(noise=ring.noise)
        found = self._follow(snapshot, policy, ring, now, left, samples_per_s)
        if found.failed or not may_follow or kept.off:
            return found
        return self._with_batch(found, ring, self.size.observation(snapshot, left))

    def _follow(
        self,
        snapshot: Snapshot,
        policy: Policy | None,
        ring: RingReport,
        now: ProgressSample | None,
        left: float | None,
        samples_per_s: float,
    ) -> PolicyResult:
        """The size of the job, and its slow workers."""
        wish = self.size.turn(snapshot, policy, now, left, ring.size_changes)
        if wish.failed:
            return PolicyResult(failed=wish.failed)
        said, np = wish.suggestion, len(snapshot.generation.members) if snapshot.generation else 0
        says = [said.reason] if said is not None else []
        if policy is not None and not ring.is_timed and policy.needs_times:
            says.append(UNTIMED.format(what=policy.needs_times))
        if said is not None and wish.is_news:
            news: News = ((PolicyDetails(np, said.np, samples_per_s), f"policy: {said.reason}"),)
            decision = None
            if wish.change is not None:
                decision = MembershipDecision(said.reason, change=wish.change)
            return PolicyResult("; ".join(says), news, decision, wish.learned)
        if policy is None or policy.stragglers is None:
            return PolicyResult("; ".join(says), learned=wish.learned)
        learned = self.size.learned
        told = self._stragglers.turn(
            snapshot, policy.stragglers, ring.care, learned.replaced, learned.elapsed_s
        )
        says += [told.says] if told.says else []
        due = wish.learned
        if told.replaced is not None:
            due = replace(learned, replaced=told.replaced)
        news = tuple((_details(finding), text) for finding, text in told.findings)
        return PolicyResult("; ".join(says), news, told.decision, due)

    def _with_batch(
        self, found: PolicyResult, ring: RingReport, now: Observation | None
    ) -> PolicyResult:
        """With the global batch, where the job chooses it."""
        if now is None or ring.batching is None or not ring.batching.is_chosen:
            return found
        now_s, before = self._clock(), self._choice
        if now_s >= self._choice_due_s:
            self._choice_due_s, self._choice = now_s + CHOICE_S, _chosen(now)
            if self._choice.batch not in (0, before.batch):
                mine = ring.batching.of_all(now.np)
                told = GlobalBatchDetails(mine, self._choice.batch), self._choice.reason
                found = replace(found, news=(*found.news, told))
        says = "; ".join(text for text in (found.says, self._choice.reason) if text)
        return replace(found, says=says, batch=self._choice.batch)

    def written(self, learned: ScalingProfile) -> None:
        """That is in ZooKeeper, as :attr:`Adapted.learned` was."""
        self.size.note(replaced=learned.replaced)
        self.size.written()

    def _may_follow(self, snapshot: Snapshot) -> bool:
        """Whether the job trains, and nobody steps it through sizes."""
        generation = snapshot.generation
        trains = generation is not None and generation.members and not snapshot.paused
        if not trains or snapshot.job.state is not JobState.RUNNING:
            return False
        profiled = (
            snapshot.desired.by is RequestedBy.PROFILE and self._store.profile.held() is not None
        )
        return not profiled


def _chosen(now: Observation) -> Choice:
    """The global batch that is to be; none, where the model of a step makes nonsense of it."""
    try:
        return choose(now)
    except ArithmeticError as error:
        logger.exception("the global batch cannot be chosen")
        return Choice(0, f"the global batch stays as it is: {error!r}")


def _details(finding: StragglerReport) -> StragglerDetails:
    workers = tuple(f"w{worker}" for worker in finding.workers)
    return StragglerDetails(workers, finding.host, str(finding.at), round(finding.speed, 3))
