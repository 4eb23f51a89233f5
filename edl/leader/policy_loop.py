"""Apply a job's policy in each turn of the leader: its size, global batch and slow workers.

The main entry is :class:`PolicyLoop`. Nothing is written here:
:class:`edl.leader.leader.LeaderTerm` writes the results, in transactions that fail if another
worker has become the leader.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from edl.coordination.job_store import JobStore
from edl.core.events import (
    Details,
    GlobalBatchDetails,
    LossSpikeDetails,
    PolicyDetails,
    StragglerDetails,
)
from edl.core.job.decision import MembershipDecision
from edl.core.learning_curve import spike_in_words
from edl.core.policy.batch import BatchDecision, choose_batch
from edl.core.policy.file import PolicyFile, parse_policy
from edl.core.policy.observation import Observation
from edl.core.policy.ring_report import RingReport
from edl.core.policy.scaling_profile import ScalingProfile
from edl.core.policy.stragglers import StragglerReport, data_part, slowest
from edl.core.progress import ProgressSample
from edl.core.records import JobPolicy, JobState, RequestedBy
from edl.core.snapshot import Snapshot
from edl.errors import UsageError
from edl.leader.size_policy import SizePolicy
from edl.leader.straggler_mitigation import StragglerMitigation

logger = logging.getLogger(__name__)

UNTIMED = "{what} cannot count: the script reads its own data, so nobody knows the workers' times"

CHOICE_S = 5.0  # between two looks at the global batch

News = tuple[tuple[Details, str], ...]  # details of an event, and its reason


@dataclass(frozen=True)
class PolicyResult:
    """The decisions of one turn of a job's policy."""

    says: str = ""  # what the policy wants and why, for people
    news: News = ()  # to be written in one transaction with the decision, if there is one
    decision: MembershipDecision | None = None
    learned: ScalingProfile | None = None  # to be written now
    batch: int = 0  # the global batch in samples; 0: it stays, or the script chooses it
    failed: str = ""  # why the policy is to be switched off; then all else is empty


class PolicyLoop:
    """The policy of a job as one leader applies it, turn by turn."""

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
        self._policy: PolicyFile | None = None
        self.size = SizePolicy(store, clock)
        self._stragglers = StragglerMitigation(wait_s, clock)
        self._clock = clock
        self._choice, self._choice_due_s = BatchDecision(0, ""), clock()

    def turn(
        self,
        snapshot: Snapshot,
        now: ProgressSample | None,
        left: float | None,
        samples_per_s: float,
    ) -> PolicyResult:
        """Record the newest measurements; return what the policy decides, and the batch."""
        kept = snapshot.policy
        if (kept.text, kept.off) != (self._kept.text, self._kept.off):
            try:
                self._policy = parse_policy(kept.text, kept.source) if kept.is_on else None
            except UsageError as error:
                return PolicyResult(failed=str(error))
            self._kept = kept
        may_follow, ring = self._may_follow(snapshot), self._ring()
        policy = self._policy if may_follow else None
        self.size.note(times=slowest(ring.times), data_part=data_part(ring.times))
        if ring.batching is not None:
            self.size.note_batching(ring.batching, ring.step_batches)
        if ring.noise.steps:
            self.size.note(noise=ring.noise)
        spikes = self._learning_news(ring)
        found = self._follow(snapshot, policy, ring, now, left, samples_per_s)
        if spikes:
            found = replace(
                found, news=(*spikes, *found.news), learned=found.learned or self.size.learned
            )
        if found.failed or not may_follow:
            return found
        if snapshot.desired.batch and ring.batching is not None and ring.batching.is_chosen:
            batch = snapshot.desired.batch // ring.step_batches
            says = f"the cluster has chosen the global batch {snapshot.desired.batch}"
            says = "; ".join(text for text in (found.says, says) if text)
            return replace(found, says=says, batch=max(1, batch))
        if kept.off:
            return found
        return self._with_batch(found, ring, self.size.observation(snapshot, left))

    def _learning_news(self, ring: RingReport) -> News:
        """Add the losses and learning rates in `ring` to the job's curve; return its spikes."""
        if not ring.learning:
            return ()
        curve, spikes = self.size.learned.learning.with_samples(ring.learning, time.time())
        self.size.note(learning=curve)
        return tuple((LossSpikeDetails(step, one), spike_in_words(one)) for step, one in spikes)

    def _follow(
        self,
        snapshot: Snapshot,
        policy: PolicyFile | None,
        ring: RingReport,
        now: ProgressSample | None,
        left: float | None,
        samples_per_s: float,
    ) -> PolicyResult:
        """Return a change of the job's size, or else the replacement of a slow worker."""
        np, number = 0, 0
        if snapshot.generation is not None:
            np, number = len(snapshot.generation.members), snapshot.generation.number
        # What an older ring has asked for has come since, or was asked of other workers.
        wishes = ring.size_changes if ring.generation == number else ()
        wish = self.size.turn(snapshot, policy, now, left, wishes)
        if wish.failed:
            return PolicyResult(failed=wish.failed)
        said = wish.suggestion
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
        """Return `found` with the global batch, if edl chooses it; the last choice lasts 5 s."""
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
        self.size.note(replaced=learned.replaced)
        self.size.written()

    def _may_follow(self, snapshot: Snapshot) -> bool:
        """Return whether the job may follow its policy: it trains, and is not being profiled."""
        generation = snapshot.generation
        trains = generation is not None and generation.members and not snapshot.paused
        if not trains or snapshot.job.state is not JobState.RUNNING:
            return False
        profiled = (
            snapshot.desired.by is RequestedBy.PROFILE and self._store.profile.held() is not None
        )
        return not profiled


def _chosen(now: Observation) -> BatchDecision:
    try:
        return choose_batch(now)
    except ArithmeticError as error:
        logger.exception("the global batch cannot be chosen")
        return BatchDecision(0, f"the global batch stays as it is: {error!r}")


def _details(finding: StragglerReport) -> StragglerDetails:
    workers = tuple(f"w{worker}" for worker in finding.workers)
    return StragglerDetails(workers, finding.host, str(finding.at), round(finding.speed, 3))
