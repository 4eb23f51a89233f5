"""Estimate the gradient noise scale: how much a larger global batch is worth to a job.

:func:`noise_sample` makes a measurement of one step, and :class:`NoiseScale` averages measurements.
The gradient of n samples is that of all data, G, and noise that falls with n: its expected square
is |G|^2 + S / n, where S is the trace of the covariance of a single sample's gradient. S / |G|^2,
the *noise scale*, is a number of samples: a global batch of so many makes half of the progress that
its samples could make in small batches (McCandlish and others, arXiv 1812.06162, section 2.2).

The workers of a step have gradients of n_i samples each, and their mean is that of N = sum n_i. By
least squares, weighted by n_i, which is the inverse of the noise of each (an analysis of variance):

    S     = (sum n_i |g_i|^2 - N |g|^2) / (K - 1)        K workers with samples
    |G|^2 = |g|^2 - S / N

Both estimates are unbiased, and a single one may be far off, or that of |G|^2 below 0. So S and
|G|^2 are averaged over the measurements, each by itself, and the ratio is taken of the averages.
Both depend on the data and the model, not on the workers, so the averages go on when workers join
or leave.

While a model learns, |G|^2 falls by orders of magnitude, and a long average lags behind it; a short
one says little where the noise is large. So there are several exponential averages, from short to
long (:data:`WINDOWS`, 4 to 1024 measurements), each with the spread of its measurements, which is
the standard error of its ratio (the delta method). The shortest average whose error is small
(:data:`MOST_ERROR`, 0.25) is used, on two conditions: it has seen enough measurements
(:data:`FILLED` (1.6) times as many as it averages over), and all shorter averages agree with it as
far as their errors allow, and have errors no larger than expected (as in Lepski's choice of a
bandwidth, Theory of Probability and its Applications 35, 1990): when |G|^2 has fallen, the errors
of the short averages grow first. Otherwise the noise scale is not known.

A job of one worker compares the gradients of two successive steps in place of two workers'. The
model has changed between them, so that measurement is marked as biased, and is discarded when there
are two workers (as in Pollux' adaptdl).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from edl.core.record import Record

WINDOWS = (4, 8, 16, 32, 64, 128, 256, 512, 1024)  # measurements; older ones have 1/e of the weight
FILLED = 1.6  # windows of measurements before an average counts: they have 80 % of its weight
FEWEST = 4.5  # measurements before their spread tells the error of their mean
MOST_ERROR = 0.25  # standard error of the ratio, over the ratio
# The gradient has fallen if a shorter average has an error so many times what is expected.
FRESH = 1.2
CHANGED = 1.1  # a scale that differs by a smaller factor does not change a learning rate
CHANGES_KEPT = 16  # newest values of the scale


@dataclass(frozen=True)
class Squares(Record):
    """The squared norms of two gradients that one worker has measured in one step; 0: not measured.

    Attributes:
        own: the squared norm of the worker's own gradient, which is a mean over its samples.
        mean: the squared norm of the job's gradient, which is a mean over the samples of all
            workers.
    """

    own: float = 0.0
    mean: float = 0.0

    @property
    def known(self) -> bool:
        """Whether both squared norms were measured (above 0) and are finite."""
        return self.own > 0 and self.mean > 0 and math.isfinite(self.own + self.mean)


@dataclass(frozen=True)
class NoiseSample:
    """The estimates of S and |G|^2, whose ratio is the gradient noise scale, from one step.

    :func:`noise_sample` makes it.

    Attributes:
        noise: S, the trace of the covariance of a single sample's gradient; 0 or more.
        signal: |G|^2, the squared norm of the gradient over all data; the estimate may be below 0.
        is_biased: whether the estimates come from two steps of a single worker.
    """

    noise: float
    signal: float
    is_biased: bool = False


def noise_sample(samples: Mapping[int, int], squares: Mapping[int, Squares]) -> NoiseSample | None:
    """Estimate S and |G|^2 (as in :class:`NoiseSample`) from the gradients of one step.

    Workers with 0 samples are left out. The result is None if no worker has samples, or if a
    squared norm of one that has is missing, 0 or not finite. With one worker the result is marked
    as biased.

    Args:
        samples: worker id -> how many samples the worker has trained in the step.
        squares: worker id -> its squared norms. For a job of one worker: ``own`` is the mean of the
            squared norms of two steps in a row, of ``samples`` each, and ``mean`` the squared norm
            of their mean gradient.
    """
    counted = {worker: n for worker, n in samples.items() if n > 0}
    found = [squares.get(worker, Squares()) for worker in counted]
    if not found or not all(one.known for one in found):
        return None
    sizes = [*counted.values()] if len(counted) > 1 else [*counted.values()] * 2
    owns = [one.own for one in found] if len(counted) > 1 else [found[0].own] * 2
    total, mean = sum(sizes), found[0].mean  # of rank 0: the same on all but for rounding
    within = sum(n * own for n, own in zip(sizes, owns, strict=True)) - total * mean
    noise = max(0.0, within) / (len(sizes) - 1)  # below 0 by rounding only
    return NoiseSample(noise, mean - noise / total, len(counted) == 1)


@dataclass(frozen=True)
class Average(Record):
    """An exponential average of noise measurements (:class:`NoiseSample`), kept as weighted sums.

    It is immutable. A measurement's weight is proportional to the samples of its step, as the noise
    of |G|^2 falls with them, and decays with each measurement after it. S is the trace of the
    covariance of a sample's gradient, |G|^2 the squared norm of the gradient over all data.

    Attributes:
        weight: the sum of the weights; 0: nothing was measured.
        weight_2: the sum of the squared weights.
        noise: the weighted sum of S.
        signal: the weighted sum of |G|^2.
        noise_2: the weighted sum of S^2.
        both: the weighted sum of S |G|^2.
        signal_2: the weighted sum of |G|^4.
    """

    weight: float = 0.0
    weight_2: float = 0.0
    noise: float = 0.0
    signal: float = 0.0
    noise_2: float = 0.0
    both: float = 0.0
    signal_2: float = 0.0

    def after(self, found: NoiseSample, counts: float, window: int) -> Average:
        """Return the average with one more measurement; the weights of earlier ones decay.

        Args:
            found: the new measurement.
            counts: the weight of the new measurement, above 0.
            window: over how many measurements is averaged: the earlier weights are multiplied by
                exp(-1 / window).
        """
        kept, s, g = math.exp(-1.0 / window), found.noise, found.signal
        return Average(
            kept * self.weight + counts,
            kept * kept * self.weight_2 + counts * counts,
            kept * self.noise + counts * s,
            kept * self.signal + counts * g,
            kept * self.noise_2 + counts * s * s,
            kept * self.both + counts * s * g,
            kept * self.signal_2 + counts * g * g,
        )

    @property
    def count(self) -> float:
        """The effective number of measurements: (sum of weights)^2 / (sum of squared weights).

        It is 0 without measurements.
        """
        return self.weight**2 / self.weight_2 if self.weight_2 else 0.0

    @property
    def means(self) -> tuple[float, float]:
        """The weighted means of the measurements: (mean of S, mean of |G|^2).

        There must be at least one measurement.
        """
        return self.noise / self.weight, self.signal / self.weight

    @property
    def error(self) -> float:
        """The standard error of the noise scale that the means give, relative to that scale.

        The noise scale is the mean of S, divided by the mean of |G|^2. The error is infinite with
        fewer than :data:`FEWEST` (4.5) effective measurements, or if the mean of |G|^2 is not above
        0; else it is 0 if the mean of S is 0. There must be at least one measurement.
        """
        (s, g), n = self.means, self.count
        if n < FEWEST or g <= 0:
            return math.inf
        if s <= 0:
            return 0.0  # each measurement is 0 or more
        spread_s = max(0.0, self.noise_2 / self.weight / s**2 - 1.0)
        spread_g = max(0.0, self.signal_2 / self.weight / g**2 - 1.0)
        together = self.both / self.weight / s / g - 1.0
        return math.sqrt(max(0.0, spread_s + spread_g - 2.0 * together) / (n - 1.0))

    @property
    def signal_error(self) -> float:
        """The standard error of the weighted mean of |G|^2, the gradient's squared norm.

        It is in the unit of |G|^2. The effective number of measurements must be above 1.
        """
        spread = self.signal_2 / self.weight - self.means[1] ** 2
        return math.sqrt(max(0.0, spread) / (self.count - 1.0))

    def confirms(self, longer: Average) -> bool:
        """Return whether this average, of a shorter window, agrees with a ``longer`` average.

        It does not if its error is over :data:`FRESH` (1.2) times what is expected from the numbers
        of measurements, or if the two means of |G|^2 differ by more than the standard error of this
        average's mean. An average of fewer than :data:`FEWEST` (4.5) effective measurements always
        agrees.
        """
        if self.count < FEWEST:
            return True
        if self.error > FRESH * MOST_ERROR * math.sqrt(longer.count / self.count):
            return False
        apart = abs(self.means[1] - longer.means[1])
        return apart <= self.signal_error + 1e-9 * longer.means[1]  # but for rounding


@dataclass(frozen=True)
class NoiseScale(Record):
    """The gradient noise scale, as far as it was measured; equal on all workers.

    It is immutable; :data:`UNKNOWN` is the one before any measurement.

    Attributes:
        averages: one average for each of :data:`WINDOWS` (4 to 1024 measurements), the shortest
            first; empty before the first measurement.
        steps: how many measurements the averages have; biased ones are not counted once there are
            others.
        first_batch: the global batch of the first measured step, in samples; 0 before that step.
        is_biased: whether the measurements come from a single worker.
        changes: pairs (number of an update, noise scale that a learning rate follows from that
            update on), oldest first, for the :data:`CHANGES_KEPT` (16) newest values. When the
            noise scale is no longer known, the last one stays.
    """

    averages: tuple[Average, ...] = ()
    steps: int = 0
    first_batch: int = 0
    is_biased: bool = False
    changes: tuple[tuple[int, float], ...] = ()

    def after(self, found: NoiseSample, batch: int, update: int) -> NoiseScale:
        """Return the noise scale with one more measurement.

        A biased measurement is ignored once there are unbiased ones; the first unbiased one
        replaces all biased ones. The measurement's weight is ``batch``, relative to
        ``first_batch``.

        Args:
            found: the new measurement.
            batch: the global batch of the measured step, in samples.
            update: the number of the optimizer's update from which on a learning rate follows the
                new value.
        """
        if found.is_biased and self.steps and not self.is_biased:
            return self
        fresh = not self.averages or (self.is_biased and not found.is_biased)
        before = tuple(Average() for _ in WINDOWS) if fresh else self.averages
        counts = batch / (self.first_batch or batch)
        averages = tuple(
            one.after(found, counts, window) for one, window in zip(before, WINDOWS, strict=True)
        )
        now = replace(
            self,
            averages=averages,
            steps=1 if fresh else self.steps + 1,
            first_batch=self.first_batch or batch,
            is_biased=found.is_biased,
        )
        return replace(now, changes=now._changes_with(update))

    def _changes_with(self, update: int) -> tuple[tuple[int, float], ...]:
        """Return ``changes``, with the present noise scale added if it differs from the last one.

        It must differ by more than the factor :data:`CHANGED` (1.1), and be known. Only the newest
        :data:`CHANGES_KEPT` (16) pairs are returned. ``update`` is the number of the optimizer's
        update from which on a learning rate follows the present scale.
        """
        scale, last = self.samples, self.changes[-1][1] if self.changes else 0.0
        if scale is None or max(scale, last) <= CHANGED * min(scale, last):
            return self.changes
        return (*self.changes, (update, scale))[-CHANGES_KEPT:]

    @property
    def samples(self) -> float | None:
        """The gradient noise scale, as a number of samples; None while it is not known.

        The shortest one of ``averages`` with a small enough error gives it, if it has enough
        measurements and all averages of shorter windows agree with it. So a known scale may become
        unknown again.
        """
        for index, one in enumerate(self.averages):
            if self.steps < FILLED * WINDOWS[index]:
                return None
            if one.error <= MOST_ERROR:
                known = all(shorter.confirms(one) for shorter in self.averages[:index])
                return one.noise / one.signal if known else None
        return None

    def gain(self, batch: float, base: float) -> float:
        """Return how many updates with batch ``base`` bring the progress of one with ``batch``.

        Both are global batches, in samples, above 0. The result is between 1 and ``batch / base``;
        it is 1 while the noise scale is not known.
        """
        return gain(self.samples or 0.0, batch, base)

    def efficiency(self, batch: float) -> float:
        """Return the progress that a sample brings in a global batch, relative to the first batch.

        ``batch`` is the global batch in samples, above 0. The result is 1 for ``first_batch``, less
        for a larger batch and more for a smaller one. It is 1 for each batch while the noise scale
        is not known. Source: Pollux (OSDI 2021), section 3.1.
        """
        if self.samples is None:
            return 1.0
        return self.gain(batch, self.first_batch) * self.first_batch / batch


UNKNOWN = NoiseScale()


def gain(scale: float, batch: float, base: float) -> float:
    """Return how many updates with global batch ``base`` bring the progress of one with ``batch``.

    It is (scale / base + 1) / (scale / batch + 1): 1 for ``scale`` 0, and near ``batch / base`` for
    a scale far above both batches. For a ``batch`` below ``base`` it is below 1.

    Args:
        scale: the noise scale, in samples, 0 or more and finite (an infinite one gives nan).
        batch: the global batch of the update, in samples, above 0.
        base: the global batch to compare with, in samples, above 0.

    Source: Johnson and others, AdaScale SGD (ICML 2020), equation 5, expressed by the noise scale.
    """
    return (scale / base + 1.0) / (scale / batch + 1.0)
