"""Define the arguments and results of a size rule, the same for live and simulated jobs.

A :class:`Rule` is called with an :class:`Observation` and returns a :class:`Suggestion`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from edl.core.record import Record
from edl.core.sizes import Sizes
from edl.step.batching import Batching
from edl.step.noise import UNKNOWN, NoiseScale

KEPT_STEPS = 200  # that a throughput is the mean of: a job may become slower, or faster

AGED_S = 600.0  # a measurement that is so much older than the next one of its size is dropped

CHANGE_S = 1.0  # what a change costs until one was measured

ALIKE = 1.25  # batches that differ by less are the same

State = Mapping[str, Any]
"""The state that a rule keeps between decisions, as JSON: another leader may make the next one."""


@dataclass(frozen=True)
class SizeMeasurement(Record):
    """The throughput that was measured with one number of workers."""

    samples_per_s: float  # of all workers together
    steps: int  # in which it was measured
    batch: float = 0.0  # samples of one worker in a step, on average; 0: unknown
    hosts: int = 1
    at_s: float = 0.0  # when it was measured last, since training began

    def and_then(self, more: SizeMeasurement) -> SizeMeasurement:
        """Return this measurement combined with `more`, a newer one of the same size."""
        if more.at_s - self.at_s > AGED_S:
            return more
        before = min(self.steps, KEPT_STEPS)
        both = before + more.steps
        rate = (self.samples_per_s * before + more.samples_per_s * more.steps) / both
        batch = (self.batch * before + more.batch * more.steps) / both
        return SizeMeasurement(rate, self.steps + more.steps, batch, more.hosts, more.at_s)


def alike(batch: float, other: float) -> bool:
    """Return whether two batches have about the same size; an unknown one (0) matches any."""
    # The last batch of an epoch is smaller than the others.
    least, most = sorted((batch, other))
    return most <= ALIKE * least or least <= 0


class ThroughputModel(Protocol):
    """A model of the throughput that a job would have with other numbers of workers."""

    def throughput(self, np: int) -> float:
        """Return the predicted throughput of `np` workers together, in samples a second."""

    def with_batches(self, np: int, batches: Sequence[float]) -> Sequence[float]:
        """Return the predicted throughput of `np` workers, for each of `batches` in order."""


@dataclass(frozen=True)
class Observation:
    """The facts about a job at one time that its size rule decides from."""

    np: int  # the number of workers that train
    sizes: Sizes  # the numbers of workers that the job may have
    slots: int | None = None  # for how many workers there is room, with these; None: any number
    steps: int = 0  # complete ones with this number of workers, without the first after a change
    seen: Mapping[int, SizeMeasurement] = field(default_factory=dict)  # by number of workers
    awaits: bool = False  # a change of the workers was asked for and is not complete yet
    elapsed_s: float = 0.0  # since training began, in which the job had workers, also if it paused
    worker_s: float = 0.0  # the sum over all workers of their time in the job, which is paid for
    left: float | None = None  # samples still to train until the end; None: unknown
    # By rank: how many workers more (below 0: fewer) a script asks for; empty: not known yet.
    size_changes: Sequence[int] = ()
    data_part: float = 0.0  # the fraction of a step that workers wait for data, on average
    model: ThroughputModel | None = None  # None: none was fitted
    batch: float = 0.0  # samples of one worker in a step, on average; 0: unknown
    batching: Batching | None = None  # of edl's loader; None: unknown
    step_batches: int = 1  # batches whose gradients a worker adds up for one step
    noise: NoiseScale = UNKNOWN  # the gradient noise scale
    change_s: float = CHANGE_S  # so long training stands still when the size changes
    # The different batches that were measured, as `batch`, in ascending order.
    batches_seen: Sequence[float] = ()

    @property
    def most(self) -> int:
        """The largest allowed size for which the hosts have room; at least the present size."""
        limits = [n for n in (self.sizes.max_np, self.slots) if n is not None]
        top = self.sizes.below(min(limits)) if limits else None
        return max(self.np, top or 0) if limits else UNLIMITED

    @property
    def least(self) -> int:
        """The smallest size that the job may have; `min_np` if no size is allowed at all."""
        return self.sizes.above(self.sizes.min_np) or self.sizes.min_np

    def steps_since(self, np: int, steps: int) -> int:
        """Return the steps with the present `np` since an earlier observation of `np`, `steps`."""
        # More steps than now: the job had another number of workers in between.
        goes_on = np == self.np and steps <= self.steps
        return self.steps - steps if goes_on else self.steps


UNLIMITED = 1 << 30


class Suggestion(NamedTuple):
    """The answer of a size rule."""

    np: int  # the number of workers that the rule wants
    reason: str  # a clause for people
    state: State  # with which the rule is called the next time


class Rule(Protocol):
    """A size rule with its settings; the protocol of every rule that a policy can name."""

    def __call__(self, now: Observation, state: State, now_s: float) -> Suggestion:
        """Return the number of workers that the job should have, why, and the rule's new state.

        The state is empty at the first call. The time since training began, `now_s`, goes on under
        a new leader. The number need not be allowed: `decide_size` limits it.
        """
