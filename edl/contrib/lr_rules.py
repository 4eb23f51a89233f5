"""Tune a job's learning rate by the loss along its own updates, and decide when to measure.

:class:`Tuning` has the rules, as pure functions of values that are equal on all workers;
`edl.LRTuner` measures, and calls them. The rule is LRTuner's (Iyer and others, arXiv 2105.14526) as
far as it is known; see docs/adr/0020-a-learning-rate-tuned-while-training.md:

- **explore**, for a part of the samples (by default half of them, as in the Knee schedule, JMLR 24,
  2023): take the highest learning rate at which the loss does not grow.
- **exploit**, until the end: take the learning rate that minimises the loss, never above the
  present one, and never above Knee's straight line to 0, which it follows if nothing can be
  measured.

From time to time a *round* measures a few updates: for each, the losses at four :func:`points`, in
the batch of the next update. From :data:`MIN_UPDATES` (4) updates on it ends as soon as their
losses give a result (:func:`judge_learning_rate`), after :data:`MAX_UPDATES` (12) without a change.
Training begins at a tenth of the given rate: one that is too high may ruin a model in a few
updates, and one that is too low is found out quickly: while the loss falls as far as was measured,
the next round measures twice as far.

A round sees the loss along one update only. Where the curvature differs much between directions,
updates soon lie in the flat ones, and a rate that suits these lets the loss explode in a steep one
some updates later. So right after each step up, and in each round, the loss is compared with the
largest of the round before. If it is much higher, the rate goes back to its earlier value, or to
half if there is none, and while exploring stays below the geometric mean of the two from then on.

A rate at which the loss does not change is the largest stable one: 2 / L for a quadratic, where L
is its largest curvature. While exploring, round after round would lower a rate from above to
exactly this value. So if a second round in a row lowers the rate, and by less than a tenth, the
rate goes to :data:`INSIDE` (0.9) of that value, and again stays below the geometric mean of the
two. Of 384 quadratics without noise (condition numbers 10 to 10,000, momentum 0 and 0.9, rates of
0.05 to 30 times 1 / L) 2 ended exploring above the stable rate, by 4 and 8 %; before this rule it
was 19. Where gradients have noise, two such rounds in a row are rare: there were none in 768
trainings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

# ------------------------------------------------------------
# Fit a parabola to the loss along an update, and judge how far it can be trusted.
#
# The entry is `judge_learning_rate`, which says by which factor to change the learning rate.
#
# An update moves the parameters by `-lr d`, where d is what the optimizer has made of the gradient.
# With the learning rate `(1 + e) lr` it would have moved them by `-(1 + e) lr d`, so
#
#     loss(e) = a0 + a1 e + a2 e^2
#
# is a model of the loss as a function of the learning rate, around the rate of the update. The
# model is fitted by least squares to the losses at the four `points`, in batches from which the
# update was not computed. The coefficients are linear in the losses, so the parabola of the mean
# losses has the mean coefficients. A factor is never above the largest measured one, because the
# model is not reliable beyond it, nor below `LOWEST` (0.25).


LOWEST = 0.25  # a learning rate changes to no less than this part of it at once
MIN_R2 = 0.8  # a parabola that explains less of the losses is none
HUGE = 1e100  # a loss beyond it is as good as infinite; squares of smaller ones are numbers
SURE = 2.5  # what is so many standard errors from 0 is not 0
MAX_ERRORS = 1e9  # where the values are equal
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
    if parabola.r2 < MIN_R2:
        return FitResult(1.0, False, f"no parabola fits the loss ({what}, less than {MIN_R2:g})")
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
    if error <= abs(mean) / MAX_ERRORS:
        return math.copysign(MAX_ERRORS, mean) if mean else 0.0
    return mean / error


START = 0.1  # of the learning rate that was given is the first one
NEAR, FIRST, FAR = 2.0, 4.0, 8.0  # a round measures up to so many times the learning rate
MIN_UPDATES, MAX_UPDATES = 4, 12  # measured updates of a round
EARLY = 0.5  # of the time for all measurements may be used at once: the start needs most
SETTLE = 20  # updates after a change, and at the start: momentum (0.9) has come to its size
LOOKS = 32  # a training has at least so many rounds, if they may cost as much
HIGHER = 4.0  # times the largest loss of the last round is much higher
INSIDE = 0.9  # of the rate at which the loss neither grows nor falls is safely below it
FALL = 100.0  # exploiting divides the learning rate by no more than this, evenly over its time


@dataclass(frozen=True)
class TunerState:
    """The state of a learning-rate tuner: newcomers receive it, and checkpoints contain it."""

    rate: float  # decided on last
    peak: float  # `rate` at the end of exploring: from it the line falls to 0
    next_at: float = 0.0  # trained samples from which on the next update is measured
    measures: bool = False  # the last update is being measured; its losses come with the next one
    reach: float = NEAR  # the largest multiple of the rate for which the round measures the loss
    curves: tuple[Curve, ...] = ()  # of the updates of this round, at `points`
    spent_s: float = 0.0  # by all measurements
    wait: int = SETTLE  # updates between two rounds; doubles with each one that keeps the rate
    decided_at: float = 0.0  # in trained samples
    reason: str = "nothing is measured yet"
    loss: float | None = None  # the largest one without an update in the last round; None: unknown
    back: float = 0.0  # the rate before the last step up; 0: none, or the rate went down since
    ceiling: float = 0.0  # while exploring, for the rate was too high once; 0: none
    checks: int = 0  # 1: the next measurement checks that the loss has not become much higher
    falls: int = 0  # rounds in a row that lowered the rate while exploring

    def snapshot(self) -> dict[str, Any]:
        return {**asdict(self), "curves": [list(curve) for curve in self.curves]}

    @staticmethod
    def restore(values: Mapping[str, Any]) -> TunerState:
        curves = tuple(tuple(map(float, curve)) for curve in values["curves"])
        return TunerState(**{**values, "curves": curves})


@dataclass(frozen=True)
class MeasuredUpdate:
    """The measurement of one update, evaluated in the batch of the update after it, the next."""

    samples: float  # that the job has trained once the next update is made
    batch: float  # of the next update, on all workers together
    losses: Curve | None  # at `points`, as means over all workers; None: nobody could measure
    cost_s: float  # on the slowest worker
    step_s: float  # of an update without measuring, as a mean over the workers; 0: unknown


@dataclass(frozen=True)
class Tuning:
    """The settings of a learning-rate tuner, with the rules of the tuner as methods."""

    total: float  # samples of the whole training, over all epochs
    explore: float  # samples, from the beginning on, for which the tuner explores
    share: float  # of the time of all updates, that measurements may take
    least: float  # rate to decide on; the line to 0 still gives a smaller one
    most: float  # rate to decide on

    def refusal(self) -> str | None:
        if not (math.isfinite(self.total) and self.total > 0):
            return f"total is {self.total:g} samples; it must be above 0"
        if not 0 <= self.explore <= self.total:
            return (
                f"explore is {self.explore:g} samples and total {self.total:g}; explore for 0 to "
                f"{self.total:g}"
            )
        if not 0 < self.share <= 1:
            return f"share is {self.share:g}; measuring takes time: give above 0, to 1"
        if not 0 < self.least <= self.most < math.inf:
            return (
                f"the learning rate is to stay between {self.least:g} and {self.most:g}; give two "
                "numbers above 0, the lower one first"
            )
        return None

    def begin(self, rate: float) -> TunerState:
        rate = self._limited(START * rate)
        return TunerState(rate, rate, reach=FIRST)

    def rate_at(self, state: TunerState, samples: float) -> float:
        if samples <= self.explore:
            return state.rate
        left = (self.total - samples) / (self.total - self.explore) if samples < self.total else 0.0
        return min(state.rate, state.peak * left)

    def is_due(self, state: TunerState, samples: float, batch: float) -> bool:
        # The first updates are smaller than later ones, for momentum builds up.
        begun = max(state.next_at, SETTLE * batch)
        return not state.measures and begun <= samples < self.total

    def measured(self, state: TunerState, now: MeasuredUpdate) -> TunerState:
        if now.step_s <= 0:  # all workers are new, and nobody knows yet
            return replace(state, measures=False, next_at=now.samples)
        state = replace(state, measures=False, spent_s=state.spent_s + now.cost_s)
        if now.losses is not None and _is_much_higher(now.losses, state):
            return self._stepped_back(state, now, now.losses)
        if state.checks:
            return self._checked(state, now)
        curves = state.curves if now.losses is None else (*state.curves, now.losses)
        state = replace(state, curves=curves)
        reason = f"too few batches to tell ({len(curves)})"
        if len(curves) >= MIN_UPDATES:
            verdict = judge_learning_rate(points(state.reach), curves, self._explores(now))
            reason = verdict.reason
            if verdict.settled:
                return self._decided(state, now, verdict.factor, reason)
        if len(curves) >= MAX_UPDATES:
            return self._decided(state, now, 1.0, reason)
        at = max(now.samples, self._affordable_at(state, now, 1))
        return replace(state, next_at=at)

    def _checked(self, state: TunerState, now: MeasuredUpdate) -> TunerState:
        """Return the tuner's state after a check that found no much higher loss than before."""
        loss = state.loss
        if loss is None and now.losses is not None and _highest(now.losses) < HUGE:
            loss = _highest(now.losses)
        settled = state.decided_at + SETTLE * now.batch
        at = max(now.samples, settled, self._affordable_at(state, now, MIN_UPDATES))
        return replace(state, checks=0, next_at=at, loss=loss)

    def _stepped_back(self, state: TunerState, now: MeasuredUpdate, losses: Curve) -> TunerState:
        """Return the state with the rate before the last step up, or half of the present one."""
        before = self.rate_at(state, now.samples)
        rate = self._limited(state.back if 0 < state.back < before else before / 2.0)
        ceiling = math.sqrt(rate * before)
        highest = _highest(losses)
        was = f"{state.loss:.3g}" if state.loss is not None else "unknown"
        return replace(
            state,
            rate=rate,
            peak=rate if self._explores(now) else state.peak,
            next_at=now.samples,
            reach=NEAR,
            curves=(),
            wait=SETTLE,
            decided_at=now.samples,
            reason=(
                f"{before:.3g} -> {rate:.3g} at {now.samples:.0f} of {self.total:.0f} samples: the "
                f"loss has gone from {was} to {highest:.3g}"
            ),
            loss=None,  # one more update was made with the higher one
            back=0.0,
            ceiling=min(ceiling, state.ceiling or ceiling),
            checks=1,
            falls=0,
        )

    def _decided(
        self, state: TunerState, now: MeasuredUpdate, factor: float, why: str
    ) -> TunerState:
        before = self.rate_at(state, now.samples)
        rate, what = state.rate, f"keeps {before:.3g}"
        ceiling = state.ceiling
        falls = state.falls + 1 if self._explores(now) and factor < 1.0 else 0
        if falls > 1 and factor > INSIDE:  # the rate is at the edge, where no update helps
            factor *= INSIDE
            ceiling = min(before * math.sqrt(factor), ceiling or math.inf)
        if factor != 1.0:
            if not self._explores(now):
                factor = max(factor, self._least_factor(state, now.samples))
            rate = self._limited(before * factor)
            if not self._explores(now):
                rate = min(rate, before)
            elif ceiling:
                rate = min(rate, max(ceiling, before))
            if rate != before:
                what = f"{before:.3g} -> {rate:.3g}"
        changed = rate != state.rate
        wait = SETTLE if changed else 2 * state.wait
        goes_on = changed and factor >= state.reach
        rises = changed and rate > before
        back = before if rises else state.back if rate >= before else 0.0
        pause = min(wait * now.batch, max(SETTLE * now.batch, self.total / LOOKS))
        return replace(
            state,
            rate=rate,
            peak=rate if self._explores(now) else state.peak,
            next_at=now.samples
            if rises
            else max(now.samples + pause, self._affordable_at(state, now, MIN_UPDATES)),
            reach=min(2.0 * state.reach, FAR) if goes_on else NEAR,
            curves=(),
            wait=wait,
            decided_at=now.samples,
            reason=f"{what} at {now.samples:.0f} of {self.total:.0f} samples: {why}",
            loss=max(curve[0] for curve in state.curves) if state.curves else state.loss,
            back=back,
            ceiling=ceiling,
            checks=int(rises),
            falls=falls,
        )

    def _explores(self, now: MeasuredUpdate) -> bool:
        return now.samples <= self.explore

    def _limited(self, rate: float) -> float:
        return min(max(rate, self.least), self.most)

    def _least_factor(self, state: TunerState, samples: float) -> float:
        # All rounds of the phase together divide the rate by no more than `FALL`.
        if self.total <= self.explore:
            return 1.0
        since = samples - max(state.decided_at, self.explore)
        return float(FALL ** (-since / (self.total - self.explore)))

    def _affordable_at(self, state: TunerState, now: MeasuredUpdate, updates: int) -> float:
        """Return from how many trained samples on more updates can be measured; 2 totals: never."""
        # They are expected to cost as much as the last one. A part of the time for all (`EARLY`) is
        # available at once, the rest evenly over the training.
        whole_s = self.share * self.total * now.step_s / now.batch
        part = ((state.spent_s + updates * now.cost_s) / whole_s - EARLY) / (1.0 - EARLY)
        return min(part, 2.0) * self.total


def _highest(losses: Curve) -> float:
    return max(losses[0], losses[2]) if not math.isnan(losses[0] + losses[2]) else math.inf


def _is_much_higher(losses: Curve, state: TunerState) -> bool:
    if not state.loss:
        return False
    return _highest(losses) > state.loss + (HIGHER - 1.0) * abs(state.loss)
