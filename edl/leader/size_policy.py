"""Choose the size of a job in each turn of the leader.

A turn observes the job, asks the rule of its policy, and returns a change of the desired workers,
which the leader writes. The rules are pure functions (:mod:`edl.core.policy`). The scaling profile
of a job (its throughput by number of workers), and the state of its rule, are in ZooKeeper, where
the next leader finds them. The main entry is :class:`SizePolicy`.
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
from edl.core.job.desired import DesiredChange
from edl.core.job.placement import place_workers
from edl.core.policy.custom_rule import CustomRule
from edl.core.policy.file import PolicyFile
from edl.core.policy.goodput import Goodput
from edl.core.policy.observation import Observation, Rule, Suggestion
from edl.core.policy.scaling_profile import ScalingProfile
from edl.core.policy.size_decision import decide_size
from edl.core.progress import ProgressSample
from edl.core.records import Generation, RequestedBy
from edl.core.snapshot import Snapshot
from edl.errors import UsageError
from edl.leader.custom_rule_runner import CustomRuleRunner
from edl.leader.fitting import Fitting
from edl.step.batching import Batching

logger = logging.getLogger(__name__)

KEEP_S = 10.0  # after so long, what was learned is written again
PROFILE_S = 30.0  # between two looks whether the job was profiled


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
        now: ProgressSample | None,
        left: float | None,
        wishes: Sequence[int] = (),  # by rank, how many workers more a script asks for
    ) -> SizeOutcome:
        """Record the newest measurement; return the size that the policy's rule suggests."""
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
        change = desired.set_desired(
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

    def _learn(self, snapshot: Snapshot, now: ProgressSample | None) -> ScalingProfile:
        """Add the measurement `now` and the time since the last turn to the scaling profile."""
        learned, now_s = self._learned, self._clock()
        if learned is None or not (learned.seen or learned.by_batch):  # resumed just now, perhaps
            learned = self._resumed(self._store.policy.learned())
        if now is not None and now.generation and now != self._before:
            generation = snapshot.generation
            if generation is not None and generation.number == now.generation:
                self._ring = now.generation, len({one.host for one in generation.members})
            # A ring goes on until the next one has met: a measurement counts for its hosts.
            measured, hosts = self._ring
            if measured == now.generation:
                learned = learned.with_reading(self._before, now, hosts)
            self._before = now
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

    def _is_news(self, np: int, found: Suggestion) -> bool:
        """Return whether a suggestion differs from the last one, up to its reason's first colon."""
        said = np, found.np, found.reason.partition(":")[0]
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
