"""Define the arguments and results of a size rule, the same for live and simulated jobs.

A :class:`Rule` is called with an :class:`Observation` and returns a :class:`Suggestion`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from edl.core.record import Record
from edl.core.sizes import Sizes
from edl.core.step.batching import Batching
from edl.core.step.noise_scale import UNKNOWN, NoiseScale

KEPT_STEPS = 200  # that a throughput is the mean of: a job may become slower, or faster

AGED_S = 600.0  # a measurement that is so much older than the next one of its size is dropped

CHANGE_S = 1.0  # what a change costs until one was measured

ALIKE = 1.25  # batches that differ by less are the same

State = Mapping[str, Any]
"""The state that a rule keeps between decisions, as JSON: another leader may make the next one."""


@dataclass(frozen=True)
class SizeMeasurement(Record):
    """The throughput that was measured with one number of workers."""

    samples_per_s: float  # the throughput of all workers together, in samples a second
    steps: int  # the number of steps in which it was measured
    # the number of samples of one worker in a step, as a mean over workers and steps; 0: unknown
    batch: float = 0.0
    hosts: int = 1  # the number of hosts that the workers were on
    at_s: float = 0.0  # when it was measured last, in seconds since training began

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
    """Return whether two batches, in samples, have about the same size."""
    # They have if their sizes differ by a factor of up to `ALIKE` (1.25), because the last batch of
    # an epoch is smaller than the others.
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
    sizes: Sizes  # the rules about the numbers of workers that the job may have
    # the number of the job's workers for which the hosts have room, the present ones included;
    # None: any number
    slots: int | None = None
    # the number of complete steps with the present number of workers; the first step after a change
    # of the workers does not count
    steps: int = 0
    # number of workers -> its measurement, for each number that was measured
    seen: Mapping[int, SizeMeasurement] = field(default_factory=dict)
    awaits: bool = False  # whether a change of the workers was asked for and is not complete yet
    # the seconds since training began, in which the job had workers; pauses of the training are
    # included
    elapsed_s: float = 0.0
    # the sum, over all workers, of the seconds that each has spent in the job; this time is paid
    # for
    worker_s: float = 0.0
    left: float | None = None  # the number of samples still to train until the end; None: unknown
    # for each worker, in rank order, how many workers more (or fewer, below 0) its script asks for;
    # empty: the workers' records have not come yet
    size_changes: Sequence[int] = ()
    # the fraction of a step's time that workers wait for their data, on average
    data_part: float = 0.0
    model: ThroughputModel | None = None  # a model of the throughput; None: none was fitted
    batch: float = 0.0  # the samples of one worker in a step, on average; 0: unknown
    batching: Batching | None = None  # the sizes of the batches of edl's loader; None: unknown
    step_batches: int = 1  # the number of batches whose gradients a worker adds up for one step
    # the gradient noise scale as far as it was measured; before that, an unknown one
    noise: NoiseScale = UNKNOWN
    change_s: float = CHANGE_S  # for how many seconds training stands still when the size changes
    # the different batches that were measured, each in samples of one worker in a step, in
    # ascending order
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
        """Return the number of complete steps with the present `np` since an earlier observation"""
        goes_on = np == self.np and steps <= self.steps
        return self.steps - steps if goes_on else self.steps


UNLIMITED = 1 << 30


class Suggestion(NamedTuple):
    """The answer of a size rule."""

    np: int  # the number of workers that the rule wants; the present number, to change nothing
    reason: str  # why, in a clause for people
    state: State  # the rule's new state, JSON values with which the rule is called the next time


class Rule(Protocol):
    """A size rule with its settings; the protocol of every rule that a policy can name."""

    def __call__(self, now: Observation, state: State, now_s: float) -> Suggestion:
        """Return the number of workers that the job should have, why, and the rule's new state."""
        # `now_s`: the seconds since training began; under a new leader this time goes on.
