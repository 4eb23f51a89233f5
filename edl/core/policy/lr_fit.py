"""A parabola of the loss along an update, and how far it can be trusted.

An update moves the parameters by ``-lr d``, d being what the optimizer has made of the gradient.
With the learning rate ``(1 + e) lr`` it would have moved them by ``-(1 + e) lr d``, so

    loss(e) = a0 + a1 e + a2 e^2

is a model of the loss by the learning rate, around the one that the update had. It is fitted by
least squares to the losses at some :func:`points`, in batches that the update has not been computed
from. The coefficients are linear in the losses, so the parabola of the mean losses is the one with
the mean coefficients. What it says is cut to the points: the model knows nothing beyond them.
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
    """Where the loss is measured: without the update, with half of it, with it, and ``reach``-fold.

    As e, in units of the learning rate.
    """
    return (-1.0, -0.5, 0.0, reach - 1.0)


@dataclass(frozen=True)
class Parabola:
    """a0 + a1 e + a2 e^2; ``r2``: the part of the losses' variance that it explains."""

    a0: float
    a1: float
    a2: float
    r2: float

    def minimum(self, high: float) -> float | None:
        """The factor of the learning rate at which it is least: 1 + e*, e* = -a1 / (2 a2).

        Where it curves down (a2 is 0 or less), infinite if it falls all the way from no update to
        one with ``high`` times the learning rate, 0 if it rises all the way; None if it does
        neither.
        """
        if self.a2 > 0:
            return 1.0 - self.a1 / (2.0 * self.a2)
        begin, end = (self.a1 + 2.0 * self.a2 * e for e in (-1.0, high - 1.0))
        if begin < 0 and end < 0:
            return math.inf
        return 0.0 if begin > 0 and end > 0 else None


def fitted(at: Sequence[float], losses: Sequence[float]) -> Parabola:
    """The parabola of least squares through (e, loss), of which there are at least 3.

    Of losses that are all equal ``r2`` is 0: they say nothing.
    """
    powers = np.vander(np.asarray(at, dtype=np.float64), 3, increasing=True)
    size = max(map(abs, losses)) or 1.0  # squares of large losses would overflow
    scaled = np.asarray(losses, dtype=np.float64) / size
    coefficients = np.linalg.lstsq(powers, scaled, rcond=None)[0]
    around = float(np.square(scaled - scaled.mean()).sum())
    left = float(np.square(scaled - powers @ coefficients).sum())
    r2 = 1.0 - left / around if around > 0 else 0.0
    a0, a1, a2 = (float(coefficient) * size for coefficient in coefficients)
    return Parabola(a0, a1, a2, r2)


def highest_that_holds(least: float, high: float) -> float:
    """While exploring: the factor towards a rate that is as high as the loss does not grow.

    Above twice the minimising rate it grows: a parabola comes back to where no update would have
    left it. With half of the minimising one it falls 3/4 as far as it can, and more would be too
    much for the momentum that builds up after the change. Between the two the rate stays.

    Args:
        least: the factor at which the loss is least.
        high: the largest that was measured.
    """
    if least > 2.0:
        return min(least / 2.0, high)
    return max(2.0 * least, LOWEST) if least < 0.5 else 1.0


def lowest_loss(least: float, high: float) -> float:
    """While exploiting: the factor to the minimising rate, never above the present one."""
    return min(1.0, max(least, LOWEST))


@dataclass(frozen=True)
class FitResult:
    """``factor``: of the learning rate, 1 keeps it. ``settled``: more batches need not be asked."""

    factor: float
    settled: bool
    reason: str


def judge(at: Sequence[float], curves: Sequence[Curve], explores: bool) -> FitResult:
    """What the losses of several batches say of the learning rate.

    A change is believed if the parabola explains the mean losses (:data:`LEAST_R2`), and if its
    direction is the same in batch after batch: to a higher rate, the loss falls there (a1 < 0); to
    a lower one while exploring, it is higher with the update than without; to a lower one while
    exploiting, it rises there (a1 > 0); each by :data:`SURE` standard errors of the mean.

    Args:
        at: the points e; the first is -1, and one is 0.
        curves: the losses there, of 2 or more batches.
    """
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
    slopes = [fitted(e, losses).a1 for losses in known]
    now = e.index(0.0)
    signs = [losses[now] - losses[0] for losses in known] if explores and factor < 1 else slopes
    errors = standard_errors(signs) * (1.0 if factor < 1 else -1.0)
    if errors < SURE:
        why = f"the batches do not agree that {why}, {errors:.1f} standard errors"
        return FitResult(1.0, False, f"{why}, less than {SURE:g})")
    return FitResult(factor, True, f"{why}, {min(errors, 99.0):.1f} standard errors)")


def standard_errors(values: Sequence[float]) -> float:
    """How many standard errors of their mean it is away from 0; at most 1e9 of them.

    ``values``: 2 or more.
    """
    n = len(values)
    mean = math.fsum(values) / n
    error = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1) / n)
    if error <= abs(mean) / MOST_ERRORS:
        return math.copysign(MOST_ERRORS, mean) if mean else 0.0
    return mean / error
