"""Learning-rate schedules that count samples, not steps.

A job whose workers come and go makes fewer steps in an epoch when it has more of them, so a
schedule in steps moves with its size. One in samples does not: what it says depends on how many
samples the job has trained, in whatever batches. All here are pure; ``edl.torch.LRSchedule`` lets
an optimizer follow one.

``at(samples)`` is the learning rate of the update after which the job has trained that many.
``warmup`` is linear from 0, over the first samples, in each of them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from edl.core.step.noise_scale import gain
from edl.errors import UsageError

EXPLORE = 0.5  # of the budget, in which Knee stays at its peak


@dataclass(frozen=True, kw_only=True)
class Schedule(ABC):
    """A learning rate by samples.

    Args:
        peak_lr: the highest one.
        warmup: samples in which it rises to that.
    """

    peak_lr: float
    warmup: float = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.peak_lr) and self.peak_lr > 0):
            self._refuse(f"peak_lr is {self.peak_lr:g}; it must be a number above 0")
        if not (math.isfinite(self.warmup) and self.warmup >= 0):
            self._refuse(f"warmup is {self.warmup:g} samples; it must be 0 or more")

    def at(self, samples: float) -> float:
        """The learning rate of the update after which so many samples are trained.

        Raises:
            UsageError: there are no so many.
        """
        if not samples >= 0:
            self._refuse(f"{samples:g} samples cannot be trained; give 0 or more")
        if samples <= self.warmup:
            return self.peak_lr * samples / self.warmup if self.warmup else self.peak_lr
        return self._after_warmup(samples)

    @abstractmethod
    def _after_warmup(self, samples: float) -> float:
        """The same; ``samples`` are more than the warm-up has."""

    def _refuse(self, why: str) -> None:
        raise UsageError(f"edl.schedules.{type(self).__name__}: {why}")


@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """The peak, from the end of the warm-up on."""

    def _after_warmup(self, samples: float) -> float:
        return self.peak_lr


@dataclass(frozen=True, kw_only=True)
class Step(Schedule):
    """Another ``factor`` lower after each of the ``milestones``, in samples."""

    milestones: Sequence[float]
    factor: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if sorted(self.milestones) != list(self.milestones) or any(m < 0 for m in self.milestones):
            self._refuse(f"the milestones are {list(self.milestones)}; give samples that grow")
        if not self.factor > 0:
            self._refuse(f"factor is {self.factor:g}; it must be above 0")

    def _after_warmup(self, samples: float) -> float:
        passed = sum(samples > milestone for milestone in self.milestones)
        return self.peak_lr * float(self.factor) ** passed


@dataclass(frozen=True, kw_only=True)
class Budgeted(Schedule):
    """One that ends.

    Args:
        total: samples of the whole training: those of an epoch times the epochs.
    """

    total: float

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.total) and self.total > 0):
            self._refuse(f"total is {self.total:g} samples; it must be above 0")
        if self.warmup > self.total:
            self._refuse(
                f"warmup is {self.warmup:g} samples and total {self.total:g}; the warm-up must fit "
                "into the whole"
            )

    def _part(self, samples: float, since: float) -> float:
        """How much of what lies between ``since`` and the end is over: 0 to 1."""
        return min(1.0, (samples - since) / (self.total - since)) if self.total > since else 1.0


@dataclass(frozen=True, kw_only=True)
class Knee(Budgeted):
    """Explore at the peak, then straight to 0 (Iyer and others, JMLR 24, 2023).

    Args:
        explore: samples at the peak, after the warm-up; None: half of ``total``.
    """

    explore: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.explore is not None and not (math.isfinite(self.explore) and self.explore >= 0):
            self._refuse(f"explore is {self.explore:g} samples; it must be 0 or more")
        if self._knee > self.total:
            self._refuse(
                f"warmup is {self.warmup:g} samples and explore {self._knee - self.warmup:g}, "
                f"together more than total, {self.total:g}; explore for less"
            )

    @property
    def _knee(self) -> float:
        return self.warmup + (EXPLORE * self.total if self.explore is None else self.explore)

    def _after_warmup(self, samples: float) -> float:
        if samples <= self._knee:
            return self.peak_lr
        return self.peak_lr * (1.0 - self._part(samples, self._knee))


@dataclass(frozen=True, kw_only=True)
class Linear(Budgeted):
    """Straight from the peak to ``end_lr``."""

    end_lr: float = 0.0

    def _after_warmup(self, samples: float) -> float:
        return self.peak_lr + (self.end_lr - self.peak_lr) * self._part(samples, self.warmup)


@dataclass(frozen=True, kw_only=True)
class Cosine(Budgeted):
    """Half a cosine from the peak to ``end_lr`` (Loshchilov and Hutter, ICLR 2017)."""

    end_lr: float = 0.0

    def _after_warmup(self, samples: float) -> float:
        return _half_cosine(self.peak_lr, self.end_lr, self._part(samples, self.warmup))


@dataclass(frozen=True, kw_only=True)
class OneCycle(Budgeted):
    """Half a cosine up to the peak, and another one down (Smith and Topin, 2017).

    Args:
        rise: the part of ``total`` in which it goes up; it has no other warm-up.
        start: the first learning rate, of the peak.
        end: the last one, of the first.
    """

    rise: float = 0.3
    start: float = 1 / 25
    end: float = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warmup:
            self._refuse("it begins with a rise of its own; leave warmup out")
        if not 0 < self.rise < 1:
            self._refuse(f"rise is {self.rise:g}; it must lie between 0 and 1")

    def at(self, samples: float) -> float:
        return self._after_warmup(samples) if samples >= 0 else super().at(samples)

    def _after_warmup(self, samples: float) -> float:
        first, top = self.start * self.peak_lr, self.rise * self.total
        if samples <= top:
            return _half_cosine(first, self.peak_lr, samples / top)
        return _half_cosine(self.peak_lr, self.end * first, self._part(samples, top))


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """How a learning rate follows the global batch, whose size changes with the workers.

    k is the global batch over ``batch``. When the global batch changes, the rate does so in equal
    parts over some updates (Lin and others, arXiv 1904.12043): the momentum of the old batches is
    in the buffer still, and noisier than that of the larger new ones. So it does when the gradient
    noise scale becomes known, or another one.

    Args:
        batch: the global batch, in samples, for which the learning rate was chosen.
        rule: ``"linear"``: k times the rate, for SGD; ``"sqrt"``: the root of k, for Adam;
            ``"adascale"``: what a batch k times as large gains, by the gradient noise scale: from 1
            to k, for SGD (Johnson and others, ICML 2020).
        ramp: updates from one factor to another; 0: at once.
    """

    batch: float
    rule: str = "linear"
    ramp: int = 8

    def __post_init__(self) -> None:
        if not (math.isfinite(self.batch) and self.batch > 0):
            raise UsageError(
                f"edl.schedules.Scaling: batch is {self.batch:g} samples; give the global batch "
                "for which the learning rate was chosen"
            )
        if self.rule not in RULES:
            raise UsageError(
                f"edl.schedules.Scaling: rule is {self.rule!r}; it must be {' or '.join(RULES)}"
            )
        if self.ramp < 0:
            raise UsageError(f"edl.schedules.Scaling: ramp is {self.ramp}; it must be 0 or more")

    @property
    def needs_noise(self) -> bool:
        """It needs the gradient noise scale."""
        return self.rule == ADASCALE

    def factor(self, batch: float, scale: float = 0.0) -> float:
        """What the rate is multiplied by, for that global batch, once the ramp is over.

        Args:
            scale: the gradient noise scale, in samples; 0: it is not known. AdaScale's rule alone
                asks for it.
        """
        if self.needs_noise:
            return gain(scale, batch, self.batch)
        return float((batch / self.batch) ** RULES[self.rule])

    def at(
        self,
        update: int,
        batches: Sequence[tuple[int, int]],
        scales: Sequence[tuple[int, float]] = (),
    ) -> float:
        """What the rate of an update is multiplied by.

        In a ramp 1 + (t - t0) / T (k - 1), where the rate was chosen for 1. One that begins during
        another begins where that is; the first batch has none.

        Args:
            update: its number in the job.
            batches: (number of its first update, global batch), for each that the job has had;
                none: it has made no update, and nothing is multiplied.
            scales: the same of each gradient noise scale that was known, in samples.
        """
        if not batches:
            return 1.0
        batch, scale = batches[0][1], 0.0
        changes = [(first, one, None) for first, one in batches[1:]]
        known = [(first, None, one) for first, one in scales] if self.needs_noise else []
        since, before = batches[0][0], self.factor(batch)
        after = before
        for first, new_batch, new_scale in sorted([*changes, *known], key=lambda one: one[0]):
            if first > update:
                break
            before = self._during(first, since, before, after)
            batch = batch if new_batch is None else new_batch
            scale = scale if new_scale is None else new_scale
            since, after = first, self.factor(batch, scale)
        return self._during(update, since, before, after)

    def _during(self, update: int, since: int, before: float, after: float) -> float:
        part = min(1.0, max(0, update - since) / self.ramp) if self.ramp else 1.0
        return before + part * (after - before)


ADASCALE = "adascale"
RULES = {"linear": 1.0, "sqrt": 0.5, ADASCALE: 1.0}  # the power of k; AdaScale's is at most 1


def _half_cosine(begin: float, end: float, part: float) -> float:
    return end + (begin - end) * (1.0 + math.cos(math.pi * part)) / 2.0
