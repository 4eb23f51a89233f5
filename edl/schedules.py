"""Define learning-rate schedules that count samples, not steps.

With more workers a job makes fewer steps in an epoch. So a schedule in steps changes with the
number of workers, and a schedule in samples does not: its learning rate depends only on how many
samples the job has trained, in whatever batches. The schedules are :class:`Constant`,
:class:`Step`, :class:`Knee`, :class:`Linear`, :class:`Cosine` and :class:`OneCycle`. All classes
here are pure; ``edl.torch.LRSchedule`` and ``edl.tensorflow.LRSchedule`` make an optimizer follow
one. :class:`Scaling` is the rule by which the learning rate follows the global batch.

``at(samples)`` is the learning rate of the update after which the job has trained that many
samples. In every schedule but OneCycle the learning rate rises linearly from 0 over the first
``warmup`` samples.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from edl.errors import UsageError
from edl.step.noise import gain

EXPLORE = 0.5  # of the budget, in which Knee stays at its peak


@dataclass(frozen=True, kw_only=True)
class Schedule(ABC):
    """A learning rate as a function of the number of samples that the job has trained.

    The constructor of each schedule raises UsageError for values that are not allowed.

    Args:
        peak_lr: the learning rate at the end of the warm-up, above 0.
        warmup: the number of samples during which the rate rises linearly from 0 to ``peak_lr``; 0:
            the first rate is ``peak_lr``.
    """

    peak_lr: float
    warmup: float = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.peak_lr) and self.peak_lr > 0):
            self._refuse(f"peak_lr is {self.peak_lr:g}; it must be a number above 0")
        if not (math.isfinite(self.warmup) and self.warmup >= 0):
            self._refuse(f"warmup is {self.warmup:g} samples; it must be 0 or more")

    def at(self, samples: float) -> float:
        """Return the learning rate of the update that brings the job to ``samples`` samples.

        ``samples`` counts from the begin of the job, and includes the batch of that update.

        Raises:
            UsageError: ``samples`` is negative or NaN.
        """
        if not samples >= 0:
            self._refuse(f"{samples:g} samples cannot be trained; give 0 or more")
        if self.warmup and samples <= self.warmup:
            return self.peak_lr * samples / self.warmup
        return self._after_warmup(samples)

    @abstractmethod
    def _after_warmup(self, samples: float) -> float:
        """Return the learning rate of an update after the warm-up."""

    def _check_rate(self, name: str, rate: float) -> None:
        if not (math.isfinite(rate) and rate >= 0):
            self._refuse(f"{name} is {rate:g}; it must be 0 or more")

    def _refuse(self, why: str) -> None:
        raise UsageError(f"edl.schedules.{type(self).__name__}: {why}")


@dataclass(frozen=True, kw_only=True)
class Constant(Schedule):
    """A schedule that stays at ``peak_lr`` after the warm-up, without an end.

    The arguments are ``peak_lr``, the learning rate, and ``warmup``, the number of samples during
    which it rises linearly from 0 (default 0).
    """

    def _after_warmup(self, samples: float) -> float:
        return self.peak_lr


@dataclass(frozen=True, kw_only=True)
class Step(Schedule):
    """A schedule that multiplies the learning rate by ``factor`` after each milestone.

    The rate begins at ``peak_lr``, after a linear rise from 0 over ``warmup`` samples (default 0).

    Args:
        milestones: numbers of trained samples, in ascending order, 0 or more. The update after
            which the job has trained more samples than a milestone is the first with the new rate.
        factor: what the present rate is multiplied by after each milestone, above 0.
    """

    milestones: Sequence[float]
    factor: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if sorted(self.milestones) != list(self.milestones) or not all(
            0 <= milestone < math.inf for milestone in self.milestones
        ):
            self._refuse(f"the milestones are {list(self.milestones)}; give samples that grow")
        if not (math.isfinite(self.factor) and self.factor > 0):
            self._refuse(f"factor is {self.factor:g}; it must be above 0")

    def _after_warmup(self, samples: float) -> float:
        passed = sum(samples > milestone for milestone in self.milestones)
        return self.peak_lr * float(self.factor) ** passed


@dataclass(frozen=True, kw_only=True)
class Budgeted(Schedule):
    """A schedule over a known number of samples; the base of schedules that decay until the end.

    After the end the learning rate stays at its last value.

    Args:
        total: the samples of the whole training, the warm-up's included: the samples of an epoch
            times the epochs.
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
        # `since` and `samples`, the present point, are numbers of trained samples, `samples` not
        # below `since`.
        return min(1.0, (samples - since) / (self.total - since)) if self.total > since else 1.0


@dataclass(frozen=True, kw_only=True)
class Knee(Budgeted):
    """A schedule that stays at ``peak_lr`` to explore, and then falls linearly to 0 at ``total``.

    It begins with a linear rise from 0 over ``warmup`` samples (default 0). Source: Iyer and
    others, JMLR 24, 2023.

    Args:
        explore: the number of samples at ``peak_lr``, after the warm-up; None: half of ``total``.
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
    """A schedule that goes linearly from ``peak_lr``, at the end of the warm-up, to ``end_lr``.

    It reaches ``end_lr`` at ``total`` samples and stays there.

    Args:
        end_lr: the learning rate from ``total`` samples on, 0 or more.
    """

    end_lr: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_rate("end_lr", self.end_lr)

    def _after_warmup(self, samples: float) -> float:
        return self.peak_lr + (self.end_lr - self.peak_lr) * self._part(samples, self.warmup)


@dataclass(frozen=True, kw_only=True)
class Cosine(Budgeted):
    """A schedule that goes along half a cosine from ``peak_lr`` to ``end_lr``, after the warm-up.

    It reaches ``end_lr`` at ``total`` samples and stays there. Source: Loshchilov and Hutter, ICLR
    2017.

    Args:
        end_lr: the learning rate from ``total`` samples on, 0 or more.
    """

    end_lr: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_rate("end_lr", self.end_lr)

    def _after_warmup(self, samples: float) -> float:
        return _half_cosine(self.peak_lr, self.end_lr, self._part(samples, self.warmup))


@dataclass(frozen=True, kw_only=True)
class OneCycle(Budgeted):
    """A schedule that rises along half a cosine to ``peak_lr`` and falls along another one.

    Source: Smith and Topin, 2017. It has no linear warm-up; a ``warmup`` other than 0 is a
    UsageError.

    Args:
        rise: the fraction of ``total``, above 0 and below 1, during which the learning rate rises.
        start: the learning rate at 0 samples, as a factor of ``peak_lr``.
        end: the learning rate from ``total`` samples on, as a factor of the one at 0 samples.
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
        self._check_rate("start", self.start)
        self._check_rate("end", self.end)

    def _after_warmup(self, samples: float) -> float:
        first, top = self.start * self.peak_lr, self.rise * self.total
        if samples <= top:
            return _half_cosine(first, self.peak_lr, samples / top)
        return _half_cosine(self.peak_lr, self.end * first, self._part(samples, top))


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """A rule by which a learning rate follows the global batch, which changes with the workers.

    Let k be the global batch divided by ``batch``. When the global batch changes, the factor of the
    learning rate changes in equal parts over ``ramp`` updates (Lin and others, arXiv 1904.12043):
    at first the momentum buffer still holds gradients of the old batches, which are noisier than
    those of larger new ones. With the rule ``"adascale"`` the factor changes in the same way when
    the gradient noise scale becomes known or changes. The constructor raises UsageError for values
    that are not allowed.

    Args:
        batch: the global batch, in samples, for which the learning rate was chosen, above 0.
        rule: ``"linear"``: multiply the learning rate by k, for SGD; ``"sqrt"``: by the square root
            of k, for Adam; ``"adascale"``: by the gain of a batch k times as large, a number from 1
            to k that follows from the gradient noise scale, and 1 while that is not known, for SGD
            (Johnson and others, ICML 2020).
        ramp: the number of updates from one factor to another; 0: the factor changes at once.
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
        """Whether the rule is ``"adascale"``, which needs the gradient noise scale."""
        return self.rule == ADASCALE

    def factor(self, batch: float, scale: float = 0.0) -> float:
        """Return what the learning rate is multiplied by for a global batch, once the ramp is over.

        Args:
            batch: the global batch, in samples.
            scale: the gradient noise scale, in samples; 0: it is not known, and the factor of the
                rule ``"adascale"`` is 1. The other rules ignore it.
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
        """Return the factor by which the learning rate of one update is multiplied.

        During a ramp from factor f to factor g the result is f + (t - t0) / ramp (g - f), for
        update t of a ramp that began at update t0; later it is g. A ramp that begins during another
        one starts at the factor reached by then. The first global batch has no ramp.

        Args:
            update: the number of the update in the job, counted as the numbers in ``batches``.
            batches: (number of the first update, global batch) for each global batch that the job
                has had, in order; empty: the job has made no update, and the result is 1.
            scales: (number of the first update, gradient noise scale in samples) for each scale
                that was known, in order; before the first the scale counts as not known. Only the
                rule ``"adascale"`` uses it.
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
        # `since`: the number of the update at which the ramp began; this update still has the
        # factor `before`.
        # `after`: the factor from `ramp` updates after `since` on.
        part = min(1.0, max(0, update - since) / self.ramp) if self.ramp else 1.0
        return before + part * (after - before)


ADASCALE = "adascale"
RULES = {"linear": 1.0, "sqrt": 0.5, ADASCALE: 1.0}  # the power of k; AdaScale's is at most 1


def _half_cosine(begin: float, end: float, part: float) -> float:
    return end + (begin - end) * (1.0 + math.cos(math.pi * part)) / 2.0
