"""The size of the job: a leader observes, asks the rule, and lets what it wishes be desired.

The rules are pure (:mod:`edl.core.policy`). What a job has learned of its sizes, and what a rule
notes, stands in ZooKeeper, where the next leader finds it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edl.coordination.job_store import JobStore
from edl.core.job import desired
from edl.core.job.departures import attainable
from edl.core.job.desired import Change
from edl.core.job.placement import place
from edl.core.policy.custom_rule import CustomRule
from edl.core.policy.file import Policy
from edl.core.policy.goodput import Goodput
from edl.core.policy.observation import Observation, Rule, Suggestion
from edl.core.policy.scaling_profile import ScalingProfile
from edl.core.policy.size_decision import decide_size
from edl.core.progress import ProgressSample
from edl.core.records import Generation, RequestedBy, Snapshot
from edl.errors import UsageError
from edl.leader.custom_rule_runner import CustomRuleRunner
from edl.leader.fitting import Fitting

logger = logging.getLogger(__name__)

KEEP_S = 10.0  # between two writings of what was learned, at most
PROFILE_S = 30.0  # between two looks whether the job was profiled


@dataclass(frozen=True)
class Outcome:
    """What a turn has come to.

    Attributes:
        suggestion: the size that the job wishes, and why; None: without a policy, or a ring.
        is_news: it differs from what was said before.
        change: of what is desired.
        learned: to be written, if it is due.
        failed: why the policy cannot go on; it is to be switched off.
    """

    suggestion: Suggestion | None = None
    is_news: bool = False
    change: Change | None = None
    learned: ScalingProfile | None = None
    failed: str = ""


class SizePolicy:
    """One leader's part in it; only its daemon thread calls it."""

    def __init__(self, store: JobStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._rule: Rule | None = None
        self._policy: Policy | None = None
        self._learned: ScalingProfile | None = None
        self._before: ProgressSample | None = None
        self._at_s: float | None = None  # of the last turn in which the job trained
        self._written_s = clock()
        self._said: tuple[int, int, str] | None = None
        self._fitting = Fitting(clock)
        self._profile_due_s = clock()

    @property
    def learned(self) -> ScalingProfile:
        """What the job has learned, as far as this leader knows."""
        return self._learned or self._store.policy.learned()

    def note(self, **changes: Any) -> None:
        """Remember something else with it."""
        self._learned = replace(self.learned, **changes)

    def turn(
        self,
        snapshot: Snapshot,
        policy: Policy | None,
        now: ProgressSample | None,
        left: float | None,
        wishes: Sequence[int] = (),
    ) -> Outcome:
        """Observe, and decide if the job has a rule for its size.

        Args:
            policy: that the job follows now, while it trains and nobody profiles it.
            now: how far the ring is; None: nobody has told.
            left: samples to train until the end of the job; None: nobody knows.
            wishes: workers more, or fewer, that the script of each worker wants.
        """
        learned = self._learn(snapshot, now)
        if policy is not self._policy:
            self._policy = policy
            self._rule = _rule(policy) if policy is not None else None
        rule, generation = self._rule, snapshot.generation
        chooses = learned.batching is not None and learned.batching.is_chosen
        if isinstance(rule, Goodput) or (chooses and generation is not None):
            newest = self._fitting.look(learned.all_seen)
            self._learned = learned = replace(learned, step_time=newest or learned.step_time)
        if policy is None or rule is None or generation is None:
            return Outcome(learned=self._due(learned))
        self._learned = learned = learned.for_rule(policy.text)
        self._learned = learned = self._with_profile(learned)
        np, (coming, awaits) = len(generation.members), _coming(snapshot, generation)
        try:
            observation = self._observed(snapshot, learned, left, awaits, wishes)
            held_s = max(0.0, snapshot.policy.held_until_s - time.time())
            found = decide_size(
                rule, observation, learned.state, learned.elapsed_s, held_s, policy.data_wait
            )
        except UsageError as error:
            return Outcome(failed=str(error))
        except Exception as error:  # a rule's own, whatever it is
            logger.exception("the policy has failed")
            return Outcome(failed=f"its rule has failed: {error!r}")
        is_news = found.state != learned.state and self._is_news(np, found)
        self._learned = learned = replace(learned, state=found.state)
        if awaits or found.np == np:
            return Outcome(found, is_news, learned=self._due(learned))
        try:
            by_slot = snapshot.assigned.by_slot
            hosts = place(snapshot.job.name, found.np, coming, snapshot.available, by_slot)
        except UsageError as error:  # a host has just gone: the next turn knows
            return Outcome(found._replace(np=np, reason=str(error)), learned=self._due(learned))
        change = desired.set_desired(
            snapshot.desired,
            snapshot.assigned,
            hosts,
            RequestedBy.POLICY,
            f"policy: {found.reason}",
        )
        return Outcome(found, True, change, learned)

    def observation(self, snapshot: Snapshot, left: float | None) -> Observation | None:
        """What the global batch is chosen by; None without a ring."""
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
        """What was learned is in ZooKeeper."""
        self._written_s = self._clock()

    def _learn(self, snapshot: Snapshot, now: ProgressSample | None) -> ScalingProfile:
        if self._learned is None or not self._learned.seen:  # it may have been resumed just now
            self._learned = self._resumed(self._store.policy.learned())
        learned, now_s = self._learned, self._clock()
        if now is not None and now.generation and now != self._before:
            members = snapshot.generation.members if snapshot.generation is not None else ()
            hosts = len({member.host for member in members})
            learned = learned.with_reading(self._before, now, max(1, hosts))
            self._before = now
        if snapshot.generation is not None and snapshot.generation.members:
            if self._at_s is not None:
                learned = learned.passed(now_s - self._at_s, len(snapshot.generation.members))
            self._at_s = now_s
        self._learned = learned
        return learned

    def _with_profile(self, learned: ScalingProfile) -> ScalingProfile:
        """With the sizes that `edl profile` has measured, and the job itself has not."""
        if self._clock() < self._profile_due_s:
            return learned
        self._profile_due_s = self._clock() + PROFILE_S
        curve = self._store.profile.get()
        return learned if curve is None else learned.with_curve(curve)

    def _resumed(self, kept: ScalingProfile) -> ScalingProfile:
        """What stands in ZooKeeper, which a checkpoint may have brought; with our own notes."""
        own = self._learned
        if own is None or kept.seen:
            return kept
        return own

    def _is_news(self, np: int, found: Suggestion) -> bool:
        """Whether another size is wished, or the same for another reason, whatever its numbers."""
        said = np, found.np, found.reason.partition(":")[0]
        before, self._said = self._said, said
        return said != before

    def _due(self, learned: ScalingProfile) -> ScalingProfile | None:
        return learned if self._clock() - self._written_s >= KEEP_S else None


def _rule(policy: Policy) -> Rule | None:
    return CustomRuleRunner(policy.size) if isinstance(policy.size, CustomRule) else policy.size


def _coming(snapshot: Snapshot, generation: Generation) -> tuple[Mapping[str, int], bool]:
    """Workers by host that are there or can come, and whether others are waited for.

    Nobody waits for workers of a host that has no agent any more: perhaps it has died.
    """
    coming = attainable(snapshot, generation.members, snapshot.desired.hosts)
    awaits = sum(coming.values()) != len(generation.members) or not _all_in(snapshot)
    return coming, awaits


def _all_in(snapshot: Snapshot) -> bool:
    """Whether all members of the newest generation are in its ring."""
    generation = snapshot.generation
    assert generation is not None
    at = {member.id: member.generation for member in snapshot.members}
    return all(at.get(ring_member.id) == generation.number for ring_member in generation.members)
