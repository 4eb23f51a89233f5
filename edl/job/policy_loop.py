"""Apply a job's policy in each turn of the leader: its size, global batch and slow workers.

:class:`edl.job.leader.LeaderTerm` writes the results, in transactions that fail if another leads by
now.
"""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edl.errors import UsageError
from edl.events import (
    Details,
    GlobalBatchDetails,
    LossSpikeDetails,
    PolicyDetails,
    StragglerDetails,
)
from edl.job.decision import DesiredChange, MembershipDecision, set_desired
from edl.job.placement import Placement, place_replacement, place_workers, undo_replacement
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
from edl.text import counted, names
from edl.zookeeper.store import JobStore

logger = logging.getLogger(__name__)


News = tuple[tuple[Details, str], ...]  # details of an event, and its reason


@dataclass(frozen=True)
class PolicyResult:
    says: str = ""  # what the policy wants and why, for people
    news: News = ()  # to be written in one transaction with the decision, if there is one
    decision: MembershipDecision | None = None
    learned: ScalingProfile | None = None  # to be written now
    batch: int = 0  # the global batch in samples; 0: it stays, or the script chooses it
    failed: str = ""  # why the policy is to be switched off; then all else is empty

    def with_batch(self, batch: int, reason: str) -> PolicyResult:
        says = "; ".join(text for text in (self.says, reason) if text)
        return replace(self, says=says, batch=batch)


# ------------------------------------------------------------
# Report slow workers, and replace the slowest on hosts with a free slot. Until it is replaced, a
# slow worker trains smaller batches than the others; it chooses their size itself (`loader_steps`).


class StragglerMitigation:
    def __init__(self, wait_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._wait_s = wait_s
        self._clock = clock
        self._reported: dict[tuple[tuple[int, ...], StragglerCause], tuple[bool, ...]] = {}
        self._since: dict[int, float] = {}  # when each request was first seen

    def turn(
        self, snapshot: Snapshot, rule: Stragglers, care: Mitigation, learned: ScalingProfile
    ) -> PolicyResult:
        now_s, elapsed_s = self._clock(), learned.elapsed_s
        open_ = [request for request in snapshot.requests if request.kind == RequestKind.REPLACE]
        self._since = {r.number: self._since.get(r.number, now_s) for r in open_}
        for late in open_:
            if now_s - self._since[late.number] < self._wait_s:
                continue
            # It is taken back, and the slow worker stays.
            outcome = f"no replacement of w{late.worker} came within {self._wait_s:g} s; it stays"
            answer = replace(late, done=True, outcome=outcome)
            change = _placed(snapshot, undo_replacement(snapshot, late), outcome)
            return PolicyResult(
                decision=MembershipDecision(outcome, change=change, answers=(answer,))
            )
        ring = snapshot.newest_members
        members = {member.id for member in ring}
        findings = [f for f in care.findings if members.issuperset(f.workers)]
        recent = {h: at for h, at in learned.replaced.items() if elapsed_s - at < rule.again_s}
        # Not on a host of which all workers are slow, nor on one that had a replacement lately.
        avoided = {finding.host for finding in findings if finding.host} | recent.keys()
        done = {r.worker: f"w{r.worker} is replaced on host {r.host}" for r in open_}
        decision = due = None
        for worker in care.replace if not open_ else ():
            if (placed := place_replacement(snapshot, worker, avoided)) is not None:
                target, hosts = placed
                reason = done[worker] = f"w{worker} is replaced on host {target}"
                asks = (Request(RequestKind.REPLACE, worker, host=target),)
                change = _placed(snapshot, hosts, reason)
                decision = MembershipDecision(reason, change=change, asks=asks)
                host = next(member.host for member in ring if member.id == worker)
                due = replace(learned, replaced={**recent, host: elapsed_s})
                break
        texts = [(finding, f"{finding}{_doing(finding, care, done)}") for finding in findings]
        says = "; ".join(text for _, text in texts)
        return PolicyResult(says, self._news(texts, care, done, members), decision, due)

    def _news(
        self,
        texts: Sequence[tuple[StragglerReport, str]],
        care: Mitigation,
        done: Mapping[int, str],
        members: set[int],
    ) -> News:
        before = self._reported
        self._reported = {
            (f.workers, f.at): tuple(w in known for known in (care.shares, done) for w in f.workers)
            for f, _ in texts
        }
        news = [
            (finding, text)
            for finding, text in texts
            if before.get((finding.workers, finding.at))
            != self._reported[finding.workers, finding.at]
        ]
        known = {worker for workers, _ in self._reported for worker in workers}
        for workers, at in before.keys() - self._reported.keys():
            if workers and not known & {*workers} and members.issuperset(workers):
                usual = f"{names(workers)} {at} as fast as the others again"
                news.append((StragglerReport(workers, "", at, 1.0), usual))
        return tuple(
            (
                StragglerDetails(
                    tuple(f"w{worker}" for worker in one.workers),
                    one.host,
                    str(one.at),
                    round(one.speed, 3),
                ),
                text,
            )
            for one, text in news
        )


def _placed(snapshot: Snapshot, hosts: Placement, reason: str) -> DesiredChange | None:
    """Return the change of the desired workers for a replacement; None: it is in the same place."""
    by, reason = RequestedBy.POLICY, f"stragglers: {reason}"
    return set_desired(snapshot.desired, snapshot.assigned, hosts, by, reason) or None


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
# A user's scaling rule runs in a thread of its own: if the leader waited for it, it would notice a
# broken ring too late.


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
# The model of a job's step time is fitted in a thread, too.


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
# The policy, turn by turn. The rules are pure functions (`policy`); the scaling profile, with the
# state of the rule, is in ZooKeeper, where the next leader finds it.


KEEP_S = 10.0  # after so long, what was learned is written again
PROFILE_S = 30.0  # between two reads whether the job was profiled
CHOICE_S = 5.0  # between two choices of the global batch
UNTIMED = "{what} cannot count: the script reads its own data, so nobody knows the workers' times"


class PolicyLoop:
    def __init__(
        self,
        store: JobStore,
        wait_s: float,
        ring: Callable[[], RingReport],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._ring = ring
        self._clock = clock
        self._kept = JobPolicy()
        self._policy: PolicyFile | None = None
        self._followed: PolicyFile | None = None  # None: the job may follow none now
        self._rule: Rule | None = None  # of `_followed`
        self._stragglers = StragglerMitigation(wait_s, clock)
        self._learned: ScalingProfile | None = None
        self._before: ProgressSample | None = None
        self._measured = 0, 1  # a generation, and the number of hosts that its workers are on
        self._at_s: float | None = None  # of the last turn in which the job trained
        self._written_s = self._profile_due_s = self._choice_due_s = clock()
        self._choice = BatchDecision(0, "")
        self._reported: tuple[int, int, str] | None = None
        self._fitting = Fitting(clock)

    @property
    def learned(self) -> ScalingProfile:
        """The scaling profile; read from ZooKeeper as long as this leader has recorded nothing."""
        return self._learned or self._store.policy.learned()

    def written(self, learned: ScalingProfile) -> None:
        self._learned = replace(self.learned, replaced=learned.replaced)
        self._written_s = self._clock()

    def turn(
        self,
        snapshot: Snapshot,
        sample: ProgressSample | None,
        left: float | None,
        samples_per_s: float,
    ) -> PolicyResult:
        kept = snapshot.policy
        if (kept.text, kept.off) != (self._kept.text, self._kept.off):
            try:
                self._policy = parse_policy(kept.text, kept.source) if kept.is_on else None
            except UsageError as error:
                return PolicyResult(failed=str(error))
            self._kept = kept
        # It may follow its policy while it trains, and is not being profiled.
        generation, ring = snapshot.generation, self._ring()
        trains = generation is not None and bool(generation.members) and not snapshot.paused
        may_follow = trains and snapshot.job.state is JobState.RUNNING
        if may_follow and snapshot.desired.by is RequestedBy.PROFILE:
            may_follow = self._store.profile.held() is None
        # What the ring reports about itself.
        times, share = slowest(ring.times), data_part(ring.times)
        learned = replace(self.learned, times=times, data_part=share)
        if ring.batching is not None:
            learned = learned.for_batching(ring.batching, ring.step_batches)
        if ring.noise.steps:
            learned = replace(learned, noise=ring.noise)
        spikes: News = ()
        if ring.learning:
            curve, found = learned.learning.with_samples(ring.learning, time.time())
            learned = replace(learned, learning=curve)
            spikes = tuple(
                (LossSpikeDetails(step, one), spike_in_words(one)) for step, one in found
            )
        self._learned = learned
        self._learn(snapshot, sample)
        policy = self._policy if may_follow else None
        result = self._follow(snapshot, policy, ring, left, samples_per_s)
        if spikes:
            due = result.learned or self.learned
            result = replace(result, news=(*spikes, *result.news), learned=due)
        if result.failed or not may_follow:
            return result
        if snapshot.desired.batch and ring.batching is not None and ring.batching.is_chosen:
            batch = snapshot.desired.batch // ring.step_batches
            says = f"the cluster has chosen the global batch {snapshot.desired.batch}"
            return result.with_batch(max(1, batch), says)
        if kept.off or ring.batching is None or not ring.batching.is_chosen:
            return result
        # The global batch, if edl chooses it; a choice lasts 5 s.
        if generation is None or not generation.members:
            return result
        now_s, before = self._clock(), self._choice
        if now_s >= self._choice_due_s:
            observation = self._observed(snapshot, left, _coming(snapshot, generation)[1])
            self._choice_due_s = now_s + CHOICE_S
            try:
                self._choice = choose_batch(observation)
            except ArithmeticError as error:
                logger.exception("the global batch cannot be chosen")
                self._choice = BatchDecision(0, f"the global batch stays as it is: {error!r}")
            if self._choice.batch not in (0, before.batch):
                mine = ring.batching.of_all(observation.np)
                details = GlobalBatchDetails(mine, self._choice.batch)
                result = replace(result, news=(*result.news, (details, self._choice.reason)))
        return result.with_batch(self._choice.batch, self._choice.reason)

    def _learn(self, snapshot: Snapshot, sample: ProgressSample | None) -> None:
        learned, now_s, generation = self.learned, self._clock(), snapshot.generation
        if not (learned.seen or learned.by_batch):  # resumed just now, perhaps from a checkpoint
            kept = self._store.policy.learned()
            if kept.seen:
                batching, steps = learned.batching, learned.step_batches
                learned = kept if batching is None else kept.for_batching(batching, steps)
        if sample is not None and sample.generation and sample != self._before:
            if generation is not None and generation.number == sample.generation:
                hosts = len({member.host for member in generation.members})
                self._measured = sample.generation, hosts
            # A ring goes on until the next one has met: a measurement counts for its hosts.
            measured, hosts = self._measured
            if measured == sample.generation:
                learned = learned.with_reading(self._before, sample, hosts)
            self._before = sample
        if generation is not None and generation.members:
            if self._at_s is not None:
                learned = learned.passed(now_s - self._at_s, len(generation.members))
            self._at_s = now_s
        self._learned = learned.for_hold(snapshot.policy)

    def _follow(
        self,
        snapshot: Snapshot,
        policy: PolicyFile | None,
        ring: RingReport,
        left: float | None,
        samples_per_s: float,
    ) -> PolicyResult:
        if policy is not self._followed:
            size = policy.size if policy is not None else None
            self._rule = CustomRuleRunner(size) if isinstance(size, CustomRule) else size
            self._followed = policy
        rule, generation, learned = self._rule, snapshot.generation, self.learned
        chooses = learned.batching is not None and learned.batching.is_chosen
        if isinstance(rule, Goodput) or (chooses and generation is not None):
            step_time = self._fitting.poll(learned.all_seen) or learned.step_time
            learned = replace(learned, step_time=step_time)
        self._learned = learned
        says: list[str] = []
        np, wish, is_news, change = 0, None, False, None
        if policy is not None and rule is not None and generation is not None:
            learned = learned.for_rule(policy.text)
            # Sizes that only `edl profile` has measured count, too.
            if self._clock() >= self._profile_due_s:
                self._profile_due_s = self._clock() + PROFILE_S
                curve = self._store.profile.get()
                learned = learned if curve is None else learned.with_curve(curve)
            self._learned = learned
            np, (coming, awaits) = len(generation.members), _coming(snapshot, generation)
            # What an older ring has asked for has come since, or was asked of other workers.
            wishes = ring.size_changes if ring.generation == generation.number else ()
            try:
                wish = decide_size(
                    rule,
                    self._observed(snapshot, left, awaits, wishes),
                    learned.state,
                    learned.elapsed_s,
                    learned.held_s(snapshot.policy),
                    policy.data_wait,
                    snapshot.desired.np,
                )
            except UsageError as error:
                return PolicyResult(failed=str(error))
            except Exception as error:  # a rule's own, whatever it is
                logger.exception("the policy has failed")
                return PolicyResult(failed=f"its rule has failed: {error!r}")
            is_news = False
            if wish.state != learned.state:  # it differs, up to its reason's first colon
                before = self._reported
                self._reported = np, wish.np, wish.reason.partition(":")[0]
                is_news = self._reported != before
            self._learned = learned = replace(learned, state=wish.state)
            change = None
            if not awaits and wish.np != np:
                try:
                    by_slot, available = snapshot.assigned.by_slot, snapshot.available
                    hosts = place_workers(snapshot.job.name, wish.np, coming, available, by_slot)
                except UsageError as error:  # a host has just gone: the next turn knows
                    wish, is_news = wish._replace(np=np, reason=str(error)), False
                else:
                    reason, by = f"policy: {wish.reason}", RequestedBy.POLICY
                    change = set_desired(snapshot.desired, snapshot.assigned, hosts, by, reason)
                    is_news = True
            says.append(wish.reason)
        if policy is not None and not ring.is_timed and policy.needs_times:
            says.append(UNTIMED.format(what=policy.needs_times))
        due = learned if self._clock() - self._written_s >= KEEP_S else None
        if wish is not None and is_news:
            details = PolicyDetails(np, wish.np, samples_per_s)
            news = ((details, f"policy: {wish.reason}"),)
            decision = None
            if change is not None:
                decision, due = MembershipDecision(wish.reason, change=change), learned
            return PolicyResult("; ".join(says), news, decision, due)
        if policy is None or policy.stragglers is None:
            return PolicyResult("; ".join(says), learned=due)
        slow = self._stragglers.turn(snapshot, policy.stragglers, ring.care, learned)
        says += [slow.says] if slow.says else []
        return replace(slow, says="; ".join(says), learned=slow.learned or due)

    def _observed(
        self,
        snapshot: Snapshot,
        left: float | None,
        awaits: bool,
        wishes: Sequence[int] = (),  # by rank, how many workers more a script asks for
    ) -> Observation:
        np = len(snapshot.newest_members)
        hosts = sorted(snapshot.available, key=lambda host: host.name)
        filled = [host.slots for host in hosts]
        sizes = snapshot.job.sizes
        return self.learned.observation(np, sizes, sum(filled), awaits, left, wishes, filled)


def _coming(snapshot: Snapshot, generation: Generation) -> tuple[Mapping[str, int], bool]:
    """Return how many of its desired workers each host can have, and if a change goes on."""
    coming = attainable(snapshot, generation.members, snapshot.desired.hosts)
    at = {member.id: member.generation for member in snapshot.members}
    entered = all(at.get(worker) == generation.number for worker in generation.worker_ids)
    return coming, not entered or sum(coming.values()) != len(generation.members)
