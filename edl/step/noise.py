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
from functools import cached_property

from edl.record import Record

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
    """The squared norms of gradients that one worker has measured in a step; 0: not measured."""

    own: float = 0.0  # of its own gradient, the mean over its samples
    mean: float = 0.0  # of the job's gradient, the mean over the samples of all workers

    @property
    def known(self) -> bool:
        """Whether both squared norms were measured (above 0) and are finite."""
        return self.own > 0 and self.mean > 0 and math.isfinite(self.own + self.mean)


@dataclass(frozen=True)
class NoiseSample:
    """The estimates of S and |G|^2, whose ratio is the gradient noise scale, from one step."""

    noise: float  # S, the trace of the covariance of a single sample's gradient; 0 or more
    signal: float  # |G|^2, that of the gradient over all data; the estimate may be below 0
    is_biased: bool = False  # from two steps of a single worker


def noise_sample(samples: Mapping[int, int], squares: Mapping[int, Squares]) -> NoiseSample | None:
    """Estimate S and |G|^2 (as in `NoiseSample`) from the gradients of one step."""
    counted = {worker: n for worker, n in samples.items() if n > 0}
    found = [squares.get(worker, Squares()) for worker in counted]
    if not found or not all(one.known for one in found):
        return None
    # Of a single worker, `own` is the mean of two steps' squared norms, and `mean` that of the
    # mean of their gradients.
    sizes = [*counted.values()] if len(counted) > 1 else [*counted.values()] * 2
    owns = [one.own for one in found] if len(counted) > 1 else [found[0].own] * 2
    total, mean = sum(sizes), found[0].mean  # of rank 0: the same on all but for rounding
    within = sum(n * own for n, own in zip(sizes, owns, strict=True)) - total * mean
    noise = max(0.0, within) / (len(sizes) - 1)  # below 0 by rounding only
    return NoiseSample(noise, mean - noise / total, len(counted) == 1)


@dataclass(frozen=True)
class Average(Record):
    """An exponential average of noise measurements (`NoiseSample`), kept as weighted sums."""

    weight: float = 0.0  # the sum of the weights; 0: nothing was measured
    weight_2: float = 0.0  # the sum of the squared weights
    noise: float = 0.0  # the weighted sum of S
    signal: float = 0.0  # the weighted sum of |G|^2
    noise_2: float = 0.0  # the weighted sum of S^2
    both: float = 0.0  # the weighted sum of S |G|^2
    signal_2: float = 0.0  # the weighted sum of |G|^4

    def after(self, found: NoiseSample, counts: float, window: int) -> Average:
        """Return the average with one more measurement; the weights of earlier ones decay."""
        # The weight is proportional to the step's samples, as the noise of |G|^2 falls with them.
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
        """The effective number of measurements: (sum of weights)^2 / (sum of squared weights)."""
        return self.weight**2 / self.weight_2 if self.weight_2 else 0.0

    @property
    def means(self) -> tuple[float, float]:
        """The weighted means of the measurements: (mean of S, mean of |G|^2)."""
        return self.noise / self.weight, self.signal / self.weight  # of one measurement at least

    @property
    def error(self) -> float:
        """The standard error of the noise scale that the means give, relative to that scale."""
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
        """The standard error of the weighted mean of |G|^2, the gradient's squared norm."""
        spread = self.signal_2 / self.weight - self.means[1] ** 2
        return math.sqrt(max(0.0, spread) / (self.count - 1.0))  # the count is above 1

    def confirms(self, longer: Average) -> bool:
        """Return whether this average, of a shorter window, agrees with a `longer` average."""
        if self.count < FEWEST:
            return True
        if self.error > FRESH * MOST_ERROR * math.sqrt(longer.count / self.count):
            return False
        apart = abs(self.means[1] - longer.means[1])
        return apart <= self.signal_error + 1e-9 * longer.means[1]  # but for rounding


@dataclass(frozen=True)
class NoiseScale(Record):
    """The gradient noise scale, as far as it was measured; equal on all workers."""

    # one for each of `WINDOWS`, the shortest first; empty before the first measurement
    averages: tuple[Average, ...] = ()
    steps: int = 0  # measurements in the averages; biased ones do not count once there are others
    first_batch: int = 0  # the global batch of the first measured step, in samples; 0 before that
    is_biased: bool = False  # measured by a single worker
    # the newest (number of an update, noise scale that a learning rate follows from it on), oldest
    # first. When the noise scale is no longer known, the last one stays.
    changes: tuple[tuple[int, float], ...] = ()

    def after(self, found: NoiseSample, batch: int, update: int) -> NoiseScale:
        """Return the noise scale with one more measurement."""
        if found.is_biased and self.steps and not self.is_biased:
            return self
        # The first unbiased measurement replaces all biased ones.
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
        """Return `changes`, with the present noise scale if it differs from the last one."""
        scale, last = self.samples, self.changes[-1][1] if self.changes else 0.0
        if scale is None or max(scale, last) <= CHANGED * min(scale, last):
            return self.changes
        return (*self.changes, (update, scale))[-CHANGES_KEPT:]

    @cached_property
    def samples(self) -> float | None:
        """The gradient noise scale, as a number of samples; None while it is not known."""
        for index, one in enumerate(self.averages):
            if self.steps < FILLED * WINDOWS[index]:
                return None
            if one.error <= MOST_ERROR:
                known = all(shorter.confirms(one) for shorter in self.averages[:index])
                return one.noise / one.signal if known else None
        return None

    def gain(self, batch: float, base: float) -> float:
        return gain(self.samples or 0.0, batch, base)

    def efficiency(self, batch: float) -> float:
        """Return a sample's progress, relative to the first batch (Pollux, OSDI 2021, 3.1)."""
        if self.samples is None:
            return 1.0
        return self.gain(batch, self.first_batch) * self.first_batch / batch


UNKNOWN = NoiseScale()


def gain(scale: float, batch: float, base: float) -> float:
    """Return how many updates with global batch `base` bring the progress of one with `batch`."""
    # Johnson and others, AdaScale SGD (ICML 2020), equation 5, by the noise scale, which is finite.
    return (scale / base + 1.0) / (scale / batch + 1.0)
