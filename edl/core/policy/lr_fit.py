"""Fit a parabola to the loss along an update, and judge how far it can be trusted.

The entry is :func:`judge_learning_rate`, which says by which factor to change the learning rate.

An update moves the parameters by ``-lr d``, where d is what the optimizer has made of the gradient.
With the learning rate ``(1 + e) lr`` it would have moved them by ``-(1 + e) lr d``, so

    loss(e) = a0 + a1 e + a2 e^2

is a model of the loss as a function of the learning rate, around the rate of the update. The model
is fitted by least squares to the losses at the four :func:`points`, in batches from which the
update was not computed. The coefficients are linear in the losses, so the parabola of the mean
losses has the mean coefficients. A factor is never above the largest measured one, because the
model is not reliable beyond it, nor below :data:`LOWEST` (0.25).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LOWEST = 0.25  # a learning rate changes to no less than this part of it at once
LEAST_R2 = 0.8  # a parabola that explains less of the losses is none
HUGE = 1e100  # a loss beyond it is as good as infinite; squares of smaller ones are numbers
SURE = 2.5  # what is so many standard errors from 0 is not 0
MOST_ERRORS = 1e9  # where the values are equal

Curve = tuple[float, ...]  # losses at some points e, in a batch or as a mean over several


def points(reach: float) -> tuple[float, ...]:
    """Return the four points e at which the loss is measured; `reach` must be above 1."""
    return (-1.0, -0.5, 0.0, reach - 1.0)


@dataclass(frozen=True)
class Parabola:
    """A parabola of the loss, loss(e) = a0 + a1 e + a2 e^2."""

    a0: float
    a1: float  # the slope at the learning rate of the update
    a2: float
    r2: float  # the fraction of the losses' variance that it explains (R squared), up to 1

    def minimum(self, high: float) -> float | None:
        """Return the factor of the learning rate with the least loss: 1 - a1 / (2 a2)."""
        if self.a2 > 0:
            return 1.0 - self.a1 / (2.0 * self.a2)
        # It does not curve up: infinite if the loss falls all the way up to `high`, 0 if it rises.
        begin, end = (self.a1 + 2.0 * self.a2 * e for e in (-1.0, high - 1.0))
        if begin < 0 and end < 0:
            return math.inf
        return 0.0 if begin > 0 and end > 0 else None


def fitted(at: Sequence[float], losses: Sequence[float]) -> Parabola:
    """Return the parabola of the loss that fits at least 3 measured losses best (least squares)."""
    powers = np.vander(np.asarray(at, dtype=np.float64), 3, increasing=True)
    size = max(map(abs, losses)) or 1.0  # squares of large losses would overflow
    scaled = np.asarray(losses, dtype=np.float64) / size
    coefficients = np.linalg.lstsq(powers, scaled, rcond=None)[0]
    around = float(np.square(scaled - scaled.mean()).sum())
    left = float(np.square(scaled - powers @ coefficients).sum())
    r2 = 1.0 - left / around if around > 0 else 0.0  # equal losses say nothing
    a0, a1, a2 = (float(coefficient) * size for coefficient in coefficients)
    return Parabola(a0, a1, a2, r2)


def highest_that_holds(least: float, high: float) -> float:
    """Return the factor towards the highest rate at which the loss does not grow (exploring)."""
    # At half of the rate with the least loss the loss falls 3/4 as far as it can; a higher rate
    # would be too much for the momentum that builds up after the change.
    if least > 2.0:
        return min(least / 2.0, high)
    # Beyond twice the rate with the least loss a parabola is higher than without an update.
    return max(2.0 * least, LOWEST) if least < 0.5 else 1.0


def lowest_loss(least: float, high: float) -> float:
    """Return the factor that lowers the rate to the one with the least loss (exploiting)."""
    return min(1.0, max(least, LOWEST))


@dataclass(frozen=True)
class FitResult:
    """The answer of `judge_learning_rate`."""

    factor: float  # of the learning rate; 1 keeps it
    settled: bool  # else `factor` is 1, and more batches should be measured
    reason: str


def judge_learning_rate(at: Sequence[float], curves: Sequence[Curve], explores: bool) -> FitResult:
    """Return by which factor the rate should change, from the losses of 2 or more batches."""
    # The first of `at` is -1, no update; one is 0, the update as it was made.
    finite = [all(abs(loss) < HUGE for loss in losses) for losses in zip(*curves, strict=True)]
    if not finite[0]:
        return FitResult(1.0, True, "the loss is no finite number, at any learning rate")
    if not finite[at.index(0.0)]:
        return FitResult(
            LOWEST, True, "with the update the loss is no finite number, without it is"
        )
    if sum(finite) < 3:
        return FitResult(1.0, False, f"only {sum(finite)} of {len(at)} losses are finite")
    e = [each for each, is_finite in zip(at, finite, strict=True) if is_finite]
    known = [[loss for loss, is_finite in zip(c, finite, strict=True) if is_finite] for c in curves]
    means = [math.fsum(losses) / len(curves) for losses in zip(*known, strict=True)]
    parabola, high = fitted(e, means), 1.0 + max(e)
    what = f"{len(curves)} batches, R2 {parabola.r2:.2f}"
    if parabola.r2 < LEAST_R2:
        return FitResult(1.0, False, f"no parabola fits the loss ({what}, less than {LEAST_R2:g})")
    least = parabola.minimum(high)
    if least is None:
        return FitResult(1.0, False, f"the loss has no minimum here: it curves down ({what})")
    factor = (highest_that_holds if explores else lowest_loss)(least, high)
    why = f"the loss is least at {least:.2g} times the learning rate ({what}"
    if factor == 1.0:
        return FitResult(1.0, True, f"{why})")
    # The batches must agree that the loss falls at the present rate (to raise it), that it rises
    # there (to lower it), or that it is higher with the update than without (exploring).
    slopes = [fitted(e, losses).a1 for losses in known]
    now = e.index(0.0)
    signs = [losses[now] - losses[0] for losses in known] if explores and factor < 1 else slopes
    errors = standard_errors(signs) * (1.0 if factor < 1 else -1.0)
    if errors < SURE:
        why = f"the batches do not agree that {why}, {errors:.1f} standard errors"
        return FitResult(1.0, False, f"{why}, less than {SURE:g})")
    return FitResult(factor, True, f"{why}, {min(errors, 99.0):.1f} standard errors)")


def standard_errors(values: Sequence[float]) -> float:
    """Return how many standard errors the mean of 2 or more `values` is away from 0."""
    n = len(values)
    mean = math.fsum(values) / n
    error = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1) / n)
    if error <= abs(mean) / MOST_ERRORS:
        return math.copysign(MOST_ERRORS, mean) if mean else 0.0
    return mean / error
