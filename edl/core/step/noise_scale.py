"""The gradient noise scale: how much a larger global batch is worth to a job.

The gradient of n samples is that of all data, G, and noise that falls with n: its expected square
is |G|^2 + S / n, where S is the trace of the covariance of a single sample's gradient. S / |G|^2,
the *noise scale*, is a number of samples: a global batch of so many makes half of the progress that
its samples could make in small batches (McCandlish and others, arXiv 1812.06162, section 2.2).

The workers of a step have gradients of n_i samples each, and their mean is that of N = sum n_i. By
least squares, weighted by n_i, which is the inverse of the noise of each (an analysis of variance):

    S     = (sum n_i |g_i|^2 - N |g|^2) / (K - 1)        K workers with samples
    |G|^2 = |g|^2 - S / N

Both are unbiased, and a single one may be far off, or below 0. So S and |G|^2 are averaged over the
steps, each by itself, and the ratio is taken of the averages. They are of the data and the model,
not of the workers, so no change of the workers ends the averages; they forget by samples that were
trained, not by steps.

A job of one worker compares the gradients of two steps on end in place of two workers'. The model
has moved between them, so that is marked as biased, and dropped as soon as there are two workers
(as in Pollux' adaptdl).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from edl.core.record import Record

MOST_BATCHES = 1e6  # a signal so small is rounding
FORGETS_IN = 1000  # global batches of the first size: those before count for 1/e (adaptdl: 0.999)


@dataclass(frozen=True)
class Squares(Record):
    """Squared norms of one worker in one step.

    ``own``: of its own gradient, the mean over its samples; ``mean``: of the job's. Both 0: it
    has not measured them.
    """

    own: float = 0.0
    mean: float = 0.0

    @property
    def known(self) -> bool:
        return self.own > 0 and self.mean > 0 and math.isfinite(self.own + self.mean)


@dataclass(frozen=True)
class Measured:
    """What one step says. ``noise``: S, 0 or more; ``signal``: |G|^2, which may be below 0."""

    noise: float
    signal: float
    is_biased: bool = False


def measured(samples: Mapping[int, int], squares: Mapping[int, Squares]) -> Measured | None:
    """What a step says whose workers have trained ``samples`` each; None: nothing.

    Args:
        squares: by worker. Of a single worker: those of two steps on end, of ``samples`` each, and
            of their mean.
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
    return Measured(noise, mean - noise / total, len(counted) == 1)


@dataclass(frozen=True)
class NoiseScale(Record):
    """What was measured so far, equal on all workers.

    Attributes:
        noise: the sum of S, and ``signal`` that of |G|^2, over the steps; what is older counts
            less.
        weight: the sum of what they count: what both are divided by to be averages.
        steps: that were measured.
        first_batch: the global batch of the first of them; 0: none was.
        at: samples that the job had trained when the newest one was.
        is_biased: by a single worker.
    """

    noise: float = 0.0
    signal: float = 0.0
    weight: float = 0.0
    steps: int = 0
    first_batch: int = 0
    at: int = 0
    is_biased: bool = False

    def after(self, found: Measured, batch: int, trained: int) -> NoiseScale:
        """With one more.

        Args:
            batch: the global batch of its step.
            trained: samples that the job has trained with it.
        """
        if found.is_biased and self.steps and not self.is_biased:
            return self
        before = NoiseScale() if self.is_biased and not found.is_biased else self
        first = self.first_batch or batch
        age = max(0, trained - before.at) if before.steps else 0
        kept = math.exp(-age / (FORGETS_IN * first))
        return replace(
            before,
            noise=kept * before.noise + found.noise,
            signal=kept * before.signal + found.signal,
            weight=kept * before.weight + 1.0,
            steps=before.steps + 1,
            first_batch=first,
            at=trained,
            is_biased=found.is_biased,
        )

    @property
    def samples(self) -> float | None:
        """The noise scale; None: nothing was measured.

        Infinite, where the gradients are nothing but noise as far as was measured: above
        MOST_BATCHES of the first one.
        """
        if self.steps == 0:
            return None
        least = self.noise / (MOST_BATCHES * self.first_batch)
        return self.noise / self.signal if self.signal > least else math.inf

    @property
    def finite(self) -> float | None:
        """The same; None also where it is infinite."""
        scale = self.samples
        return None if scale is None or math.isinf(scale) else scale

    def gain(self, batch: float, base: float) -> float:
        """How many updates with the global batch ``base`` one with ``batch`` is worth.

        From 1, where the gradients have no noise, to batch / base, where they are nothing else; 1
        while nothing is known.

        Source: Johnson and others, AdaScale SGD (ICML 2020), equation 5, by the noise scale.
        """
        scale = self.samples
        if scale is None:
            return 1.0
        if math.isinf(scale):
            return batch / base
        return (scale / base + 1.0) / (scale / batch + 1.0)

    def efficiency(self, batch: float) -> float:
        """The progress of a sample in a global batch of ``batch``, beside one in the first batch.

        1 while nothing is known. Source: Pollux (OSDI 2021), section 3.1.
        """
        if not self.first_batch:
            return 1.0
        return self.gain(batch, self.first_batch) * self.first_batch / batch


UNKNOWN = NoiseScale()
