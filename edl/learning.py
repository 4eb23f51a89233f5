"""Keep the loss and the learning rate of a job over its steps, and say when the loss goes wrong.

:class:`LearningCurve` is the record, bounded in size: means over equal periods, which become longer
as the job does. The leader adds samples to it (:meth:`LearningCurve.with_sample`), which also
returns a :class:`LossSpike` when the loss is not finite any more, or has risen far above its lowest
value.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

from edl.record import Record
from edl.text import workers

# ------------------------------------------------------------
# Sample the loss and the learning rate of one worker's training (`LearningMeter`).
#
# The training thread pays for a comparison in each step. Twice a second it keeps the loss of one
# step and its learning rate, and reads the loss half a second later, when the device has computed
# it.

PERIOD_S = 0.5  # between two samples
KEPT = 64  # samples that wait for a leader
_RATES = ("learning_rate", "lr")
_SCORES = ("val", "valid", "validation", "eval", "test")  # losses of data that is not trained


@dataclass(frozen=True)
class LearningSample:
    step: int  # from 1
    loss: float | None  # may be infinite or nan; None: not known
    learning_rate: float | None  # of the step's update; None: not known
    np: int
    is_mean: bool = False  # the loss is the mean over all workers, not of one worker's batch


class LearningMeter:
    """The samples of a worker; the daemon's thread calls `taken`, the training thread the rest."""

    def __init__(self) -> None:
        self.wants_loss = True  # the next loss is to be given to `observe_loss`; others need not
        # The framework sets it.
        self.learning_rate: Callable[[], float | None] = lambda: None
        self.due_s = 0.0  # when the next sample is made, by `completed`
        self._step = 0
        self._rate: float | None = None
        self._read: Callable[[], float | None] | None = None
        self._mean: float | None = None
        self._has_means = False
        self._samples: deque[LearningSample] = deque(maxlen=KEPT)

    def observe_loss(self, step: int, read: Callable[[], float | None]) -> None:
        """Keep the loss of `step` and the learning rate; a later step calls `read` at its end."""
        self.wants_loss = False
        if not self._has_means:
            self._step, self._read, self._rate = step, read, self.learning_rate()

    def observe_means(self, step: int, means: Mapping[str, float]) -> None:
        """Keep the loss among the means over all workers; from now on it counts alone."""
        if (name := training_loss(means)) is None:
            return
        self._has_means, self._read = True, None
        rate = self.learning_rate()
        if rate is None:
            rate = next((means[one] for one in means if _last_word(one) in _RATES), None)
        self._step, self._mean, self._rate = step, means[name], rate

    def completed(self, step: int, np: int, now_s: float) -> None:
        self.due_s, self.wants_loss = now_s + PERIOD_S, True
        loss, read, is_mean = self._mean, self._read, self._has_means
        if read is not None:
            with suppress(RuntimeError):  # of a device
                loss = read()
        rate = self._rate
        if loss is None:
            self._step, rate = step, self.learning_rate()
        self._mean = self._read = None
        if loss is not None or rate is not None:
            self._samples.append(LearningSample(self._step, loss, rate, np, is_mean))

    def taken(self) -> tuple[LearningSample, ...]:
        found: list[LearningSample] = []
        with suppress(IndexError):
            while True:
                found.append(self._samples.popleft())
        return tuple(found)


def training_loss(means: Mapping[str, float]) -> str | None:
    names = [name for name in means if "loss" in name.lower() and not _is_score(name)]
    return min(names, key=lambda name: (len(name), name), default=None)


def _last_word(name: str) -> str:
    return name.rpartition("/")[2].lower()


def _is_score(name: str) -> bool:
    words = name.lower().replace("/", "_").replace("-", "_").replace(".", "_").split("_")
    return any(word in _SCORES for word in words)


MAX_POINTS = 120
FIRST_PERIOD_S = 0.5
MEAN_OF = 5  # losses: one alone says little
# The loss has risen when each of the last MEAN_OF is TIMES the lowest mean, and above all losses of
# the COMPARED before that mean. Of losses that only fluctuate, whatever their distribution, five in
# a row are above the 40 before once in C(45, 5) = 1.2 million times.
COMPARED = 40
TIMES = 3.0
OF_FIRST = 0.5  # less than so much of the first loss is no rise: a loss near 0 has multiples
WELL_BELOW = 0.5  # of that: then it has fallen again
RISE = 1.05  # of the learning rate: less is no rise


class LearningPoint(NamedTuple):
    step: int  # of its last sample
    at_s: float  # when that was read, since 1970
    loss: float | None  # the mean of its finite losses; None: there are none
    learning_rate: float | None  # the last one; None: not known
    finite: int  # how many losses are
    not_finite: int

    def and_then(self, later: LearningPoint) -> LearningPoint:
        finite = self.finite + later.finite
        sums = (one.loss * one.finite for one in (self, later) if one.loss is not None)
        return later._replace(
            loss=sum(sums) / finite if finite else None,
            learning_rate=(
                self.learning_rate if later.learning_rate is None else later.learning_rate
            ),
            finite=finite,
            not_finite=self.not_finite + later.not_finite,
        )


@dataclass(frozen=True)
class LossSpike(Record):
    """The finding that the loss of a job goes wrong."""

    loss: float | None  # the mean of the last losses; None: they are not finite
    lowest: float | None = None  # the lowest such mean before; None: no loss was finite
    lowest_step: int = 0
    first: float | None = None  # the first loss; None: none was finite
    learning_rate: float | None = None  # the present one; None: not known
    rate_before: float | None = None  # before its last rise; None: it has not risen
    rate_step: int | None = None  # the step of the first sample with the higher rate
    np_before: int = 0  # workers before that rise; 0: it has not risen
    np_after: int = 0
    is_mean: bool = False  # the losses are means over all workers, not of one worker's batches
    rate_after: float | None = None  # the highest since that rise; an older edl has not noted it

    @property
    def risen_to(self) -> float | None:
        """The learning rate that the rise led to, or the present one if that is not known."""
        return self.learning_rate if self.rate_after is None else self.rate_after


@dataclass(frozen=True)
class LossTrend(Record):
    """A summary of the losses and learning rates of a job until now, to judge the next loss by."""

    first: float | None = None  # the first finite loss; None: there was none
    lowest: float | None = None  # the lowest mean of `MEAN_OF` losses, or the first loss
    lowest_step: int = 0
    recent: tuple[float, ...] = ()  # the last finite losses, at most `COMPARED`
    learning_rate: float | None = None  # the newest one; None: not known
    rate_before: float | None = None  # before its last rise above all before; None: no rise
    rate_step: int | None = None  # the step of the first sample after that rise
    np: int = 0  # workers in the last sample
    np_before: int = 0  # the same before the rise
    np_after: int = 0
    told: float | None = None  # the loss of the last finding, which the loss has not left yet
    is_not_finite: bool = False  # the last loss, which was told
    is_mean: bool = False  # the last loss was the mean over all workers
    rate_after: float | None = None  # the highest since the rise
    highest: float = 0.0  # of `recent` when the lowest mean was found

    def with_sample(self, sample: LearningSample) -> tuple[LossTrend, LossSpike | None]:
        new = self._with_rate(sample)
        if sample.loss is None:
            return new, None
        if sample.is_mean and not new.is_mean:  # means do not compare with one worker's losses
            new = replace(new, first=None, lowest=None, recent=(), told=None, is_mean=True)
        if not math.isfinite(sample.loss):
            spike = None if new.is_not_finite else new._spike(None)
            return replace(new, is_not_finite=True), spike
        return replace(new, is_not_finite=False)._with_loss(sample.step, sample.loss)

    def _with_rate(self, sample: LearningSample) -> LossTrend:
        rate, before = sample.learning_rate, self.learning_rate
        if rate is None:
            return replace(self, np=sample.np)
        new = replace(self, learning_rate=rate, np=sample.np)
        if before is not None and rate > RISE * before:
            goes_on = self.rate_step is not None and self.rate_before is not None and before > 0
            is_ramp = goes_on and rate < 1.5 * before  # a warm-up rises in many small steps
            if not is_ramp:
                return replace(
                    new,
                    rate_before=before,
                    rate_step=sample.step,
                    np_before=self.np,
                    np_after=sample.np,
                    rate_after=rate,
                )
        if self.rate_step is None:
            return new
        return replace(new, rate_after=max(rate, self.rate_after or 0.0))

    def _with_loss(self, step: int, loss: float) -> tuple[LossTrend, LossSpike | None]:
        recent = (*self.recent, loss)[-COMPARED:]
        last = recent[-MEAN_OF:]
        mean = sum(last) / len(last)
        new = replace(self, recent=recent)
        if MEAN_OF < len(recent) < COMPARED:
            new = replace(new, highest=max(recent[:-MEAN_OF]))
        first = loss if self.first is None else self.first
        if self.lowest is None:
            return replace(new, first=first, lowest=loss, lowest_step=step, highest=loss), None
        # The first loss may be low by chance: soon only means count, and before that only a loss
        # that rises in each sample is a finding.
        is_chance = len(recent) < 2 * MEAN_OF and list(last) != sorted(last)
        is_first_mean = self.told is None and len(self.recent) < 2 * MEAN_OF <= len(recent)
        if len(last) == MEAN_OF and (mean < self.lowest or is_first_mean):
            highest = max(recent)
            return replace(new, lowest=mean, lowest_step=step, highest=highest, told=None), None
        limit = max(TIMES * self.lowest, OF_FIRST * first)
        if self.told is not None:
            return (replace(new, told=None) if mean < WELL_BELOW * limit else new), None
        if len(recent) <= MEAN_OF or self.lowest <= 0 or is_chance:
            return new, None
        if min(last) < max(limit, new.highest):
            return new, None
        return replace(new, told=mean), new._spike(mean)

    def _spike(self, loss: float | None) -> LossSpike:
        known = {one.name: getattr(self, one.name) for one in fields(LossSpike)[1:]}
        return LossSpike(loss, **known)


@dataclass(frozen=True)
class LearningCurve(Record):
    """The loss and the learning rate of a job over its steps, in bounded memory."""

    period_s: float = FIRST_PERIOD_S
    points: tuple[LearningPoint, ...] = ()  # of periods with a sample, the oldest first
    trend: LossTrend = field(default_factory=LossTrend)

    def with_samples(
        self, samples: Sequence[LearningSample], at_s: float
    ) -> tuple[LearningCurve, tuple[tuple[int, LossSpike], ...]]:
        curve, found = self, list[tuple[int, LossSpike]]()
        for sample in samples:
            curve = curve._back_to(sample.step)
            trend, spike = curve.trend.with_sample(sample)
            if spike is not None:
                found.append((sample.step, spike))
            curve = replace(curve, trend=trend)._with_point(_point(sample, at_s))
        return curve, tuple(found)

    def columns(self) -> dict[str, list[float | None]]:
        return {
            "step": [one.step for one in self.points],
            "loss": [one.loss for one in self.points],
            "learning_rate": [one.learning_rate for one in self.points],
        }

    def _back_to(self, step: int) -> LearningCurve:
        """Return the curve without what it has of `step` and later, which is trained again."""
        if not self.points or self.points[-1].step < step:
            return self
        points = tuple(one for one in self.points if one.step < step)
        trend = replace(
            self.trend, first=None, lowest=None, recent=(), told=None, is_not_finite=False
        )
        return replace(self, points=points, trend=trend)

    def _with_point(self, point: LearningPoint) -> LearningCurve:
        new = replace(self, points=_added(self.points, point, self.period_s))
        while len(new.points) > MAX_POINTS:
            period_s, points = 2 * new.period_s, tuple[LearningPoint, ...]()
            for one in new.points:
                points = _added(points, one, period_s)
            new = replace(new, period_s=period_s, points=points)
        return new


def _point(sample: LearningSample, at_s: float) -> LearningPoint:
    loss = sample.loss
    is_finite = loss is not None and math.isfinite(loss)
    is_bad = loss is not None and not is_finite
    mean = float(f"{loss:.6g}") if loss is not None and is_finite else None
    return LearningPoint(
        sample.step, round(at_s, 1), mean, sample.learning_rate, int(is_finite), int(is_bad)
    )


def _added(
    points: tuple[LearningPoint, ...], point: LearningPoint, period_s: float
) -> tuple[LearningPoint, ...]:
    last = points[-1] if points else None
    if last is not None and last.at_s // period_s == point.at_s // period_s:
        return (*points[:-1], last.and_then(point))
    return (*points, point)


def short(value: float) -> str:
    """Return a number with three or four significant digits for a sentence: "0.236", "12,400"."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.3g}"


def spike_in_words(spike: LossSpike) -> str:
    whose = "of all workers" if spike.is_mean else "of one worker's batches"
    if spike.loss is None:
        what = "the loss is not finite (inf or nan) any more"
        if spike.lowest is not None:
            what += f"; it was {short(spike.lowest)} at step {spike.lowest_step}"
        else:
            what = "the loss was never finite: it is inf or nan from the first step on"
    else:
        times = spike.loss / spike.lowest if spike.lowest else 0.0
        what = (
            f"the loss has risen to {short(spike.loss)}, {short(times)} times its lowest value "
            f"({short(spike.lowest or 0.0)} at step {spike.lowest_step}; means {whose})"
        )
    return f"{what}; {_rate_in_words(spike)}"


def _rate_in_words(spike: LossSpike) -> str:
    rate, top = spike.learning_rate, spike.risen_to
    if rate is None or top is None:
        return "edl does not know the learning rate"
    if spike.rate_before is None or spike.rate_step is None:
        return f"the learning rate is {short(rate)} and has not risen before"
    size = ""
    if spike.np_before != spike.np_after:
        size = f", when {workers(spike.np_before)} became {spike.np_after}"
    now = f", and is {short(rate)} now" if rate < top else ""
    return (
        f"the learning rate rose from {short(spike.rate_before)} to {short(top)} "
        f"at about step {spike.rate_step}{size}{now}"
    )
