"""Apply a job's policy in each turn of the leader: its size, global batch and slow workers.

The main entry is :class:`PolicyLoop`. Nothing is written here:
:class:`edl.job.leader.LeaderTerm` writes the results, in transactions that fail if another
worker has become the leader.
"""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from edl.errors import UsageError
from edl.events import (
    Details,
    GlobalBatchDetails,
    LossSpikeDetails,
    PolicyDetails,
    StragglerDetails,
)
from edl.job import decision
from edl.job.decision import DesiredChange, MembershipDecision, set_desired
from edl.job.placement import place_replacement, place_workers, undo_replacement
from edl.job.resize import attainable
from edl.job.snapshot import Snapshot
from edl.learning import spike_in_words
from edl.policy.file import CustomRule, PolicyFile, parse_policy, step_time_samples, suggestion
from edl.policy.goodput import BatchDecision, Goodput, choose_batch, decide_size
from edl.policy.observation import Observation, Rule, SizeMeasurement, State, Suggestion
from edl.policy.scaling_profile import ScalingProfile
from edl.policy.step_time import StepTime, StepTimeSample
from edl.policy.step_time_fit import fit
from edl.policy.stragglers import (
    Mitigation,
    RingReport,
    StragglerCause,
    StragglerReport,
    Stragglers,
    data_part,
    slowest,
)
from edl.records import (
    Generation,
    JobPolicy,
    JobState,
    ProgressSample,
    Request,
    RequestedBy,
    RequestKind,
)
from edl.step.batching import Batching
from edl.text import counted, names
from edl.zookeeper.store import JobStore

logger = logging.getLogger(__name__)


# ------------------------------------------------------------
# Report slow workers, and replace the slowest ones by workers on hosts with a free slot.
#
# Until it is replaced, a slow worker trains smaller batches than the others; it chooses their size
# itself (`loader_steps`). The main entry is `StragglerMitigation`.


@dataclass(frozen=True)
class MitigationResult:
    """The decisions of one turn about slow workers."""

    says: str = ""  # who is slow and what is done about it, for people
    findings: tuple[tuple[StragglerReport, str], ...] = ()  # new ones, each with a sentence
    decision: MembershipDecision | None = None  # requests a replacement, or takes that back
    # When each host had its last replacement, in seconds of training; None: none is requested now.
    replaced: Mapping[str, float] | None = field(default=None)


class StragglerMitigation:
    """The part of a leader that reports slow workers and replaces them by workers in free slots."""

    def __init__(self, wait_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._wait_s = wait_s
        self._clock = clock
        self._said: dict[tuple[tuple[int, ...], StragglerCause], tuple[bool, ...]] = {}
        self._since: dict[int, float] = {}  # when each request was first seen

    def turn(
        self,
        snapshot: Snapshot,
        rule: Stragglers,
        care: Mitigation,
        replaced: Mapping[str, float],
        now_s: float,
    ) -> MitigationResult:
        """Decide which slow worker to replace, one at a time, and which findings to report."""
        open_ = [request for request in snapshot.requests if request.kind == RequestKind.REPLACE]
        if late := self._late(open_):
            return MitigationResult(decision=self._taken_back(snapshot, late))
        members = set(snapshot.generation.worker_ids if snapshot.generation else ())
        care = care._replace(
            findings=tuple(f for f in care.findings if members.issuperset(f.workers))
        )
        recent = {host: at for host, at in replaced.items() if now_s - at < rule.again_s}
        decision = None
        done = {request.worker: _on_its_way(request) for request in open_}
        for worker in care.replace if not open_ else ():
            decision = self._replace(snapshot, worker, care, recent)
            if decision is not None:
                done[worker] = decision.reason
                break
        says = [(finding, f"{finding}{_doing(finding, care, done)}") for finding in care.findings]
        new = self._news(says, care, done, members)
        text = "; ".join(sentence for _, sentence in says)
        if decision is None:
            return MitigationResult(text, new)
        assert snapshot.generation is not None
        worker = decision.asks[0].worker
        host = next(member.host for member in snapshot.generation.members if member.id == worker)
        return MitigationResult(text, new, decision, {**recent, host: now_s})

    def _news(
        self,
        says: Sequence[tuple[StragglerReport, str]],
        care: Mitigation,
        done: Mapping[int, str],
        members: set[int],
    ) -> tuple[tuple[StragglerReport, str], ...]:
        """Return the findings to report: new ones, and those whose treatment has changed."""
        before = self._said
        self._said = {
            (f.workers, f.at): tuple(w in known for known in (care.shares, done) for w in f.workers)
            for f, _ in says
        }
        new = [
            (f, text)
            for f, text in says
            if before.get((f.workers, f.at)) != self._said[f.workers, f.at]
        ]
        known = {worker for workers, _ in self._said for worker in workers}
        for workers, at in before.keys() - self._said.keys():
            if workers and not known & {*workers} and members.issuperset(workers):
                usual = f"{names(workers)} {at} as fast as the others again"
                new.append((StragglerReport(workers, "", at, 1.0), usual))
        return tuple(new)

    def _replace(
        self, snapshot: Snapshot, worker: int, care: Mitigation, recent: Mapping[str, float]
    ) -> MembershipDecision | None:
        """Return the decision to replace a slow worker; None if it cannot be replaced."""
        # Not on a host of which all workers are slow, nor on one that had a replacement lately.
        slow = {finding.host for finding in care.findings if finding.host}
        found = place_replacement(snapshot, worker, slow | recent.keys())
        if found is None:
            return None
        target, hosts = found
        ask = Request(RequestKind.REPLACE, worker, host=target)
        reason = _on_its_way(ask)
        change = set_desired(
            snapshot.desired, snapshot.assigned, hosts, RequestedBy.POLICY, f"stragglers: {reason}"
        )
        return MembershipDecision(reason, change=change if change else None, asks=(ask,))

    def _late(self, requests: list[Request]) -> Request | None:
        now_s = self._clock()
        self._since = {r.number: self._since.get(r.number, now_s) for r in requests}
        late = (r for r in requests if now_s - self._since[r.number] >= self._wait_s)
        return next(late, None)

    def _taken_back(self, snapshot: Snapshot, late: Request) -> MembershipDecision:
        """Return the decision to take back a request for a replacement; the slow worker stays."""
        outcome = f"no replacement of w{late.worker} came within {self._wait_s:g} s; it stays"
        answer = Request(
            late.kind, late.worker, late.number, done=True, outcome=outcome, host=late.host
        )
        hosts = undo_replacement(snapshot, late)
        change = set_desired(
            snapshot.desired, snapshot.assigned, hosts, RequestedBy.POLICY, f"stragglers: {outcome}"
        )
        return MembershipDecision(outcome, change=change if change else None, answers=(answer,))


def _on_its_way(request: Request) -> str:
    return f"w{request.worker} is replaced on host {request.host}"


def _doing(finding: StragglerReport, care: Mitigation, done: Mapping[int, str]) -> str:
    """Return what is done, as the end of a sentence: "; trains 0.70 of a batch in each step"."""
    parts = []
    if lower := [worker for worker in finding.workers if worker in care.shares]:
        least = min(care.shares[worker] for worker in lower)
        each = "" if len(lower) == 1 else "at least "
        parts.append(f"trains {each}{least:.2f} of a batch in each step")
    parts += [done[worker] for worker in finding.workers if worker in done]
    if finding.workers and not parts:
        parts.append("no other worker would do better" if finding.at is StragglerCause.DATA else "")
    return "".join(f"; {part}" for part in parts if part)


# ------------------------------------------------------------
# Call a user's scaling rule in a thread of its own, because it may be slow.
#
# If the leader waited for the rule, it would notice a broken ring too late. The main entry is
# `CustomRuleRunner`.


WAIT_S = 0.05  # for an answer in the same turn


class CustomRuleRunner:
    """A `Rule` that calls a user's function in the background, and gives each answer once."""

    def __init__(self, rule: CustomRule) -> None:
        self._rule = rule
        self._question: _RuleCall | None = None
        self._asked_at = 0, 0  # workers, and steps with so many

    def __call__(self, now: Observation, state: State, now_s: float) -> Suggestion:
        rule, question = self._rule, self._question
        if question is None:
            left = rule.every_steps - now.steps_since(*self._asked_at)
            if now.awaits or left > 0:
                when = f"in {counted(left, 'step')}"
                when = "when the workers have changed" if now.awaits else when
                return Suggestion(now.np, f"{rule} is asked {when}", state)
            try:
                question = self._question = _RuleCall(rule, now, dict(state), now_s)
            except RuntimeError:  # the limit of threads: the next call tries again
                return Suggestion(now.np, f"{rule} is not asked: no thread can be started", state)
            self._asked_at = now.np, now.steps
        if question.over.wait(WAIT_S):
            self._question = None
            if question.error is not None:
                raise UsageError(f"{rule} failed: {question.error!r}") from question.error
            return suggestion(question.answer, rule)
        if now_s - question.asked_s > rule.deadline_s:
            raise UsageError(f"{rule} gave no answer within {rule.deadline_s:g} s")
        return Suggestion(now.np, f"{rule} has been asked", state)


class _RuleCall:
    """One call of a user's rule in a thread, and its answer or error."""

    def __init__(
        self, rule: CustomRule, observation: Observation, state: dict[str, Any], now_s: float
    ) -> None:
        self.asked_s = now_s  # in seconds of the job's training
        self.over = threading.Event()  # set when the two below may be read
        self.answer: Any = None  # unchecked
        self.error: BaseException | None = None
        self._ask = rule, observation, state
        threading.Thread(target=self._run, name="edl-policy", daemon=True).start()

    def _run(self) -> None:
        rule, now, state = self._ask
        try:
            function = getattr(importlib.import_module(rule.module), rule.function)
            self.answer = function(now, state, self.asked_s)
        except BaseException as error:  # noqa: BLE001 - raised by the leader's turn
            self.error = error
        self.over.set()


# ------------------------------------------------------------
# Fit the model of a job's step time in a thread, so that the leader does not wait for it.
#
# The main entry is `Fitting`.


EVERY_S = 30.0  # between two fits


class Fitting:
    """A background fit of the step-time model, repeated as long as `poll` is called."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._fitted_s: float | None = None
        self._seen: Mapping[tuple[int, int], SizeMeasurement] = {}
        self._thread: threading.Thread | None = None
        self._found: StepTime | None = None

    def poll(self, seen: Mapping[tuple[int, int], SizeMeasurement]) -> StepTime | None:
        """Return a new model once, if a fit has ended; if none runs, start one when it is due."""
        if self._thread is not None:
            if self._thread.is_alive():
                return None
            self._thread = None
            return self._found
        # At once if other combinations of workers and batch are measured than in the last fit.
        now_s = self._clock()
        due = self._fitted_s is None or now_s - self._fitted_s >= EVERY_S
        if not _measured(seen) or not (due or seen.keys() != self._seen.keys()):
            return None
        thread = threading.Thread(target=self._fit, name="edl-fit", daemon=True)
        before = self._fitted_s, self._seen
        self._fitted_s, self._seen, self._found = now_s, dict(seen), None
        try:
            thread.start()
        except RuntimeError:  # the limit of threads is reached: the next poll tries again
            self._fitted_s, self._seen = before
        else:
            self._thread = thread
        return None

    def _fit(self) -> None:
        try:
            self._found = fit(_measured(self._seen))
        except (ValueError, ArithmeticError) as error:  # a singular matrix is a ValueError
            logger.warning("the step times fit no model: %s", error)


def _measured(seen: Mapping[tuple[int, int], SizeMeasurement]) -> list[StepTimeSample]:
    return step_time_samples((np, one) for (np, _), one in seen.items())


# ------------------------------------------------------------
# Choose the size of a job in each turn of the leader.
#
# A turn observes the job, asks the rule of its policy, and returns a change of the desired workers,
# which the leader writes. The rules are pure functions (`policy`). The scaling profile of a job
# (its throughput by number of workers), and the state of its rule, are in ZooKeeper, where the next
# leader finds them. The main entry is `SizePolicy`.


KEEP_S = 10.0  # after so long, what was learned is written again

PROFILE_S = 30.0  # between two reads whether the job was profiled


@dataclass(frozen=True)
class SizeOutcome:
    """The decisions of one turn of the size policy."""

    suggestion: Suggestion | None = None  # None: no ring or no rule, or it has failed
    is_news: bool = False  # the suggestion is worth an event
    change: DesiredChange | None = None
    learned: ScalingProfile | None = None  # to be written now
    failed: str = ""  # why the policy is to be switched off


class SizePolicy:
    """The part of a job's policy that chooses its size; only the daemon thread calls it."""

    def __init__(self, store: JobStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._rule: Rule | None = None
        self._policy: PolicyFile | None = None
        self._learned: ScalingProfile | None = None
        self._before: ProgressSample | None = None
        self._ring = 0, 1  # a generation, and the number of hosts that its workers are on
        self._at_s: float | None = None  # of the last turn in which the job trained
        self._written_s = clock()
        self._said: tuple[int, int, str] | None = None
        self._fitting = Fitting(clock)
        self._profile_due_s = clock()

    @property
    def learned(self) -> ScalingProfile:
        """The scaling profile; read from ZooKeeper as long as this leader has recorded nothing."""
        return self._learned or self._store.policy.learned()

    def note(self, **changes: Any) -> None:
        """Replace fields of the scaling profile in memory."""
        self._learned = replace(self.learned, **changes)

    def note_batching(self, batching: Batching, step_batches: int) -> None:
        self._learned = self.learned.for_batching(batching, step_batches)

    def turn(
        self,
        snapshot: Snapshot,
        policy: PolicyFile | None,
        sample: ProgressSample | None,
        left: float | None,
        wishes: Sequence[int] = (),  # by rank, how many workers more a script asks for
    ) -> SizeOutcome:
        """Record the newest measurement; return the size that the policy's rule suggests."""
        learned = self._learn(snapshot, sample)
        if policy is not self._policy:
            self._policy = policy
            self._rule = _rule(policy) if policy is not None else None
        rule, generation = self._rule, snapshot.generation
        chooses = learned.batching is not None and learned.batching.is_chosen
        if isinstance(rule, Goodput) or (chooses and generation is not None):
            newest = self._fitting.poll(learned.all_seen)
            self._learned = learned = replace(learned, step_time=newest or learned.step_time)
        if policy is None or rule is None or generation is None:
            return SizeOutcome(learned=self._due(learned))
        self._learned = learned = learned.for_rule(policy.text)
        self._learned = learned = self._with_profile(learned)
        np, (coming, awaits) = len(generation.members), _coming(snapshot, generation)
        try:
            observation = self._observed(snapshot, learned, left, awaits, wishes)
            held_s = learned.held_s(snapshot.policy)
            found = decide_size(
                rule,
                observation,
                learned.state,
                learned.elapsed_s,
                held_s,
                policy.data_wait,
                snapshot.desired.np,
            )
        except UsageError as error:
            return SizeOutcome(failed=str(error))
        except Exception as error:  # a rule's own, whatever it is
            logger.exception("the policy has failed")
            return SizeOutcome(failed=f"its rule has failed: {error!r}")
        is_news = found.state != learned.state and self._is_news(np, found)
        self._learned = learned = replace(learned, state=found.state)
        if awaits or found.np == np:
            return SizeOutcome(found, is_news, learned=self._due(learned))
        try:
            by_slot = snapshot.assigned.by_slot
            hosts = place_workers(snapshot.job.name, found.np, coming, snapshot.available, by_slot)
        except UsageError as error:  # a host has just gone: the next turn knows
            return SizeOutcome(found._replace(np=np, reason=str(error)), learned=self._due(learned))
        change = decision.set_desired(
            snapshot.desired,
            snapshot.assigned,
            hosts,
            RequestedBy.POLICY,
            f"policy: {found.reason}",
        )
        return SizeOutcome(found, True, change, learned)

    def observation(self, snapshot: Snapshot, left: float | None) -> Observation | None:
        if snapshot.generation is None or not snapshot.generation.members:
            return None
        awaits = _coming(snapshot, snapshot.generation)[1]
        return self._observed(snapshot, self.learned, left, awaits)

    @staticmethod
    def _observed(
        snapshot: Snapshot,
        learned: ScalingProfile,
        left: float | None,
        awaits: bool,
        wishes: Sequence[int] = (),
    ) -> Observation:
        np = len(snapshot.generation.members) if snapshot.generation is not None else 0
        slots = sum(host.slots for host in snapshot.available)
        filled = [host.slots for host in sorted(snapshot.available, key=lambda host: host.name)]
        return learned.observation(np, snapshot.job.sizes, slots, awaits, left, wishes, filled)

    def written(self) -> None:
        self._written_s = self._clock()

    def _learn(self, snapshot: Snapshot, sample: ProgressSample | None) -> ScalingProfile:
        """Add the measurement `now` and the time since the last turn to the scaling profile."""
        learned, now_s = self._learned, self._clock()
        if learned is None or not (learned.seen or learned.by_batch):  # resumed just now, perhaps
            learned = self._resumed(self._store.policy.learned())
        if sample is not None and sample.generation and sample != self._before:
            generation = snapshot.generation
            if generation is not None and generation.number == sample.generation:
                self._ring = sample.generation, len({one.host for one in generation.members})
            # A ring goes on until the next one has met: a measurement counts for its hosts.
            measured, hosts = self._ring
            if measured == sample.generation:
                learned = learned.with_reading(self._before, sample, hosts)
            self._before = sample
        if snapshot.generation is not None and snapshot.generation.members:
            if self._at_s is not None:
                learned = learned.passed(now_s - self._at_s, len(snapshot.generation.members))
            self._at_s = now_s
        self._learned = learned = learned.for_hold(snapshot.policy)
        return learned

    def _with_profile(self, learned: ScalingProfile) -> ScalingProfile:
        """Return `learned` with the sizes added that only `edl profile` has measured."""
        if self._clock() < self._profile_due_s:
            return learned
        self._profile_due_s = self._clock() + PROFILE_S
        curve = self._store.profile.get()
        return learned if curve is None else learned.with_curve(curve)

    def _resumed(self, kept: ScalingProfile) -> ScalingProfile:
        """Return the profile to use: `kept`, perhaps from a checkpoint, or this leader's own."""
        own = self._learned
        if own is None:
            return kept
        if not kept.seen:
            return own
        if own.batching is None:
            return kept
        return kept.for_batching(own.batching, own.step_batches)

    def _is_news(self, np: int, suggestion: Suggestion) -> bool:
        """Return whether a suggestion differs from the last one, up to its reason's first colon."""
        said = np, suggestion.np, suggestion.reason.partition(":")[0]
        before, self._said = self._said, said
        return said != before

    def _due(self, learned: ScalingProfile) -> ScalingProfile | None:
        return learned if self._clock() - self._written_s >= KEEP_S else None


def _rule(policy: PolicyFile) -> Rule | None:
    return CustomRuleRunner(policy.size) if isinstance(policy.size, CustomRule) else policy.size


def _coming(snapshot: Snapshot, generation: Generation) -> tuple[Mapping[str, int], bool]:
    """Return how many of its desired workers each host can have, and if a change goes on."""
    coming = attainable(snapshot, generation.members, snapshot.desired.hosts)
    awaits = sum(coming.values()) != len(generation.members) or not _all_in(snapshot)
    return coming, awaits


def _all_in(snapshot: Snapshot) -> bool:
    generation = snapshot.generation
    assert generation is not None
    at = {member.id: member.generation for member in snapshot.members}
    return all(at.get(ring_member.id) == generation.number for ring_member in generation.members)


UNTIMED = "{what} cannot count: the script reads its own data, so nobody knows the workers' times"

CHOICE_S = 5.0  # between two choices of the global batch

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
        sample: ProgressSample | None,
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
        found = self._follow(snapshot, policy, ring, sample, left, samples_per_s)
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
        sample: ProgressSample | None,
        left: float | None,
        samples_per_s: float,
    ) -> PolicyResult:
        """Return a change of the job's size, or else the replacement of a slow worker."""
        np, number = 0, 0
        if snapshot.generation is not None:
            np, number = len(snapshot.generation.members), snapshot.generation.number
        # What an older ring has asked for has come since, or was asked of other workers.
        wishes = ring.size_changes if ring.generation == number else ()
        wish = self.size.turn(snapshot, policy, sample, left, wishes)
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
        self, result: PolicyResult, ring: RingReport, observation: Observation | None
    ) -> PolicyResult:
        """Return `found` with the global batch, if edl chooses it; the last choice lasts 5 s."""
        if observation is None or ring.batching is None or not ring.batching.is_chosen:
            return result
        now_s, before = self._clock(), self._choice
        if now_s >= self._choice_due_s:
            self._choice_due_s, self._choice = now_s + CHOICE_S, _chosen(observation)
            if self._choice.batch not in (0, before.batch):
                mine = ring.batching.of_all(observation.np)
                told = GlobalBatchDetails(mine, self._choice.batch), self._choice.reason
                result = replace(result, news=(*result.news, told))
        says = "; ".join(text for text in (result.says, self._choice.reason) if text)
        return replace(result, says=says, batch=self._choice.batch)

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


def _chosen(observation: Observation) -> BatchDecision:
    try:
        return choose_batch(observation)
    except ArithmeticError as error:
        logger.exception("the global batch cannot be chosen")
        return BatchDecision(0, f"the global batch stays as it is: {error!r}")


def _details(finding: StragglerReport) -> StragglerDetails:
    workers = tuple(f"w{worker}" for worker in finding.workers)
    return StragglerDetails(workers, finding.host, str(finding.at), round(finding.speed, 3))
