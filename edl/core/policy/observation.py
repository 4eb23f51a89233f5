"""What a rule decides from, and what it answers: values, in a live job and in a simulated one."""

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
"""What a rule notes for the next time: JSON values, for another leader may ask then."""


@dataclass(frozen=True)
class Seen(Record):
    """What was measured with some number of workers, of all together, in so many steps.

    Attributes:
        batch: samples of one worker in a step, on average; 0: nobody knows.
        hosts: that the workers were on.
        at_s: when the last of these steps was made, in seconds since training began.
    """

    samples_per_s: float
    steps: int
    batch: float = 0.0
    hosts: int = 1
    at_s: float = 0.0

    def and_then(self, more: Seen) -> Seen:
        """Return this measurement and a newer one of the same size as one.

        What is older than KEPT_STEPS steps is forgotten bit by bit, and all of it at once where
        more than AGED_S seconds lie between the two: the job may have become slower, or faster.
        """
        if more.at_s - self.at_s > AGED_S:
            return more
        before = min(self.steps, KEPT_STEPS)
        both = before + more.steps
        rate = (self.samples_per_s * before + more.samples_per_s * more.steps) / both
        batch = (self.batch * before + more.batch * more.steps) / both
        return Seen(rate, self.steps + more.steps, batch, more.hosts, more.at_s)


def alike(batch: float, other: float) -> bool:
    """Whether batches are about of the same size: the last one of an epoch is smaller."""
    least, most = sorted((batch, other))
    return most <= ALIKE * least or least <= 0


class Model(Protocol):
    """What a job would train with other numbers of workers."""

    def throughput(self, np: int) -> float:
        """Samples a second of ``np`` workers together, with batches as they are now."""

    def with_batches(self, np: int, batches: Sequence[float]) -> Sequence[float]:
        """The same with each of these ``batches``, in samples of one worker."""


@dataclass(frozen=True)
class Observation:
    """A job at one moment.

    Attributes:
        np: workers that train.
        sizes: how many it may have.
        slots: for how many there is room; None: for any number.
        steps: complete with these workers; the first after a change does not count.
        seen: the throughput by number of workers, as far as it was measured.
        awaits: workers were asked for that are not there yet, or are there still.
        elapsed_s: since training began, pauses included.
        worker_s: workers, times the seconds that each was there: what is paid.
        left: samples to train until the end; None: nobody knows.
        wishes: workers more, or fewer, that the script of each worker wants.
        data_part: of a step, in which the workers wait for their data, on average.
        model: of the throughput, where somebody has fitted one.
        batch: samples of one worker in a step, on average; 0: nobody knows.
        batching: how large the batches of a loader of edl's are; None: nobody knows.
        step_batches: of so many, gradients are added up for one step.
        noise: what is known of the gradient noise scale.
        change_s: for how long nobody trains when the size changes.
        batches_seen: the samples of one worker in a step, as far as they were measured.
    """

    np: int
    sizes: Sizes
    slots: int | None = None
    steps: int = 0
    seen: Mapping[int, Seen] = field(default_factory=dict)
    awaits: bool = False
    elapsed_s: float = 0.0
    worker_s: float = 0.0
    left: float | None = None
    size_changes: Sequence[int] = ()
    data_part: float = 0.0
    model: Model | None = None
    batch: float = 0.0
    batching: Batching | None = None
    step_batches: int = 1
    noise: NoiseScale = UNKNOWN
    change_s: float = CHANGE_S
    batches_seen: Sequence[float] = ()

    @property
    def most(self) -> int:
        """The largest size that it may have and there is room for; at least what it has."""
        limits = [n for n in (self.sizes.max_np, self.slots) if n is not None]
        top = self.sizes.below(min(limits)) if limits else None
        return max(self.np, top or 0) if limits else UNLIMITED

    @property
    def least(self) -> int:
        """The smallest size that it may have."""
        return self.sizes.above(self.sizes.min_np) or self.sizes.min_np


UNLIMITED = 1 << 30


class Suggestion(NamedTuple):
    """The size that a rule wants, why, and what it notes."""

    np: int
    reason: str
    state: State


class Rule(Protocol):
    """A policy with its parameters."""

    def __call__(self, now: Observation, state: State, now_s: float) -> Suggestion:
        """What is wanted at ``now_s``; ``state``: as noted the last time, empty at first.

        ``now_s``: seconds since training began, which no new leader sets back.
        """
