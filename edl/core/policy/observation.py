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
    """The throughput that was measured with one number of workers.

    Attributes:
        samples_per_s: the throughput of all workers together, in samples a second.
        steps: the number of steps in which it was measured.
        batch: the number of samples of one worker in a step, as a mean over workers and steps; 0:
            unknown.
        hosts: the number of hosts that the workers were on.
        at_s: when it was measured last, in seconds since training began.
    """

    samples_per_s: float
    steps: int
    batch: float = 0.0
    hosts: int = 1
    at_s: float = 0.0

    def and_then(self, more: SizeMeasurement) -> SizeMeasurement:
        """Return this measurement combined with ``more``, a newer one of the same size.

        Throughput and batch are means weighted by steps, in which this measurement counts for at
        most :data:`KEPT_STEPS` (200) steps. The steps are added; hosts and time are those of
        ``more``. If ``more`` is over :data:`AGED_S` (600) seconds newer, it is returned alone: the
        job may have become slower, or faster.
        """
        if more.at_s - self.at_s > AGED_S:
            return more
        before = min(self.steps, KEPT_STEPS)
        both = before + more.steps
        rate = (self.samples_per_s * before + more.samples_per_s * more.steps) / both
        batch = (self.batch * before + more.batch * more.steps) / both
        return SizeMeasurement(rate, self.steps + more.steps, batch, more.hosts, more.at_s)


def alike(batch: float, other: float) -> bool:
    """Return whether two batches, in samples, have about the same size.

    They have if their sizes differ by a factor of up to :data:`ALIKE` (1.25), because the last
    batch of an epoch is smaller than the others. An unknown size (0) matches any other.
    """
    least, most = sorted((batch, other))
    return most <= ALIKE * least or least <= 0


class ThroughputModel(Protocol):
    """A model of the throughput that a job would have with other numbers of workers.

    :class:`edl.core.policy.scaling.ScalingModel` is the one of a live job.
    """

    def throughput(self, np: int) -> float:
        """Return the predicted throughput of ``np`` workers together, in samples a second.

        Each worker is assumed to train as many samples in a step as a worker does now.
        """

    def with_batches(self, np: int, batches: Sequence[float]) -> Sequence[float]:
        """Return the predicted throughput of ``np`` workers, for each of ``batches`` in order.

        A throughput is of all workers together, in samples a second; a batch is in samples of one
        worker in a step.
        """


@dataclass(frozen=True)
class Observation:
    """The facts about a job at one time that its size rule decides from.

    Attributes:
        np: the number of workers that train.
        sizes: the rules about the numbers of workers that the job may have.
        slots: the number of the job's workers for which the hosts have room, the present ones
            included; None: any number.
        steps: the number of complete steps with the present number of workers; the first step after
            a change of the workers does not count.
        seen: number of workers -> its measurement, for each number that was measured.
        awaits: whether a change of the workers was asked for and is not complete yet.
        elapsed_s: the seconds since training began, in which the job had workers; pauses of the
            training are included.
        worker_s: the sum, over all workers, of the seconds that each has spent in the job; this
            time is paid for.
        left: the number of samples still to train until the end; None: unknown.
        size_changes: for each worker, in rank order, how many workers more (or fewer, below 0) its
            script asks for; empty: the workers' records have not come yet.
        data_part: the fraction of a step's time that workers wait for their data, on average.
        model: a model of the throughput; None: none was fitted.
        batch: the samples of one worker in a step, on average; 0: unknown.
        batching: the sizes of the batches of edl's loader; None: unknown.
        step_batches: the number of batches whose gradients a worker adds up for one step.
        noise: the gradient noise scale as far as it was measured; before that, an unknown one.
        change_s: for how many seconds training stands still when the size changes.
        batches_seen: the different batches that were measured, each in samples of one worker in a
            step, in ascending order.
    """

    np: int
    sizes: Sizes
    slots: int | None = None
    steps: int = 0
    seen: Mapping[int, SizeMeasurement] = field(default_factory=dict)
    awaits: bool = False
    elapsed_s: float = 0.0
    worker_s: float = 0.0
    left: float | None = None
    size_changes: Sequence[int] = ()
    data_part: float = 0.0
    model: ThroughputModel | None = None
    batch: float = 0.0
    batching: Batching | None = None
    step_batches: int = 1
    noise: NoiseScale = UNKNOWN
    change_s: float = CHANGE_S
    batches_seen: Sequence[float] = ()

    @property
    def most(self) -> int:
        """The largest allowed size for which the hosts have room; at least the present size.

        If neither the job nor the room is limited, this is :data:`UNLIMITED`.
        """
        limits = [n for n in (self.sizes.max_np, self.slots) if n is not None]
        top = self.sizes.below(min(limits)) if limits else None
        return max(self.np, top or 0) if limits else UNLIMITED

    @property
    def least(self) -> int:
        """The smallest size that the job may have; ``min_np`` if no size is allowed at all."""
        return self.sizes.above(self.sizes.min_np) or self.sizes.min_np

    def steps_since(self, np: int, steps: int) -> int:
        """Return the number of complete steps with the present ``np`` since an earlier observation.

        Args:
            np: the number of workers in the earlier observation; if it is another one, all present
                ``steps`` count.
            steps: the steps in the earlier observation. If they exceed the present ones, the job
                had another number of workers in between, and all present steps count.
        """
        goes_on = np == self.np and steps <= self.steps
        return self.steps - steps if goes_on else self.steps


UNLIMITED = 1 << 30


class Suggestion(NamedTuple):
    """The answer of a size rule.

    Attributes:
        np: the number of workers that the rule wants; the present number, to change nothing.
        reason: why, in a clause for people.
        state: the rule's new state, JSON values with which the rule is called the next time.
    """

    np: int
    reason: str
    state: State


class Rule(Protocol):
    """A size rule with its settings; the protocol of every rule that a policy can name.

    The leader calls the object with each new observation of the job, and keeps its state for it.
    """

    def __call__(self, now: Observation, state: State, now_s: float) -> Suggestion:
        """Return the number of workers that the job should have, why, and the rule's new state.

        The number need not be allowed: :func:`edl.core.policy.size_decision.decide_size` limits it.

        Args:
            now: the job as it is at the time ``now_s``.
            state: the state that the rule returned the last time, also under another leader; empty
                at the first call.
            now_s: the seconds since training began; under a new leader this time goes on.
        """
