"""Measure squared norms of gradients, in the steps that are chosen for it, for the noise scale.

The norms are those of each worker's own gradient and of the job's mean gradient, from which the
gradient noise scale is computed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from edl.core.step.step_record import samples_for
from edl.worker.worker import Worker

Looked = Sequence[tuple[Any, int]]  # parts of gradients, flat, and how often each counts

PARTS = 8  # of a large gradient one is looked at, another each time
LARGE = 4096  # numbers


class NoiseMeter(ABC):
    """A meter for the gradient noise of a script's only optimizer, on one worker.

    The meter reads one eighth of a large gradient, and counts it eight times, because the
    computation for Adam costs as much as some steps. All eighths have their turn.

    Several workers compare their own gradients with the mean of all. A worker that is alone
    compares the gradients of two consecutive steps, so it keeps those of the first step for that
    long.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._kept: tuple[int, int, Looked] | None = None  # step, samples; alone

    @property
    def wants(self) -> bool:
        """Whether the gradients of the open step are to be given to :meth:`show`.

        False with several optimizers, because each of them has a noise of its own.
        """
        loader = self._worker.loader
        if not loader.open or self._worker.warming_up or loader.progress.optimizers > 1:
            return False
        return loader.progress.noise.is_due(loader.progress.step) or self._follows

    def show(self, own: Callable[[], Looked], mean: Callable[[], Looked]) -> None:
        """Measure the gradients of the open step, after the allreduce and before they are changed.

        Args:
            own: returns this worker's own gradients, whose scale may differ by :meth:`_own_factor`.
            mean: returns the job's mean gradients; not called if this worker is alone.
        """
        loader = self._worker.loader
        if not loader.step_input.samples:
            self._kept = None
        elif self._worker.ring.alone:
            self._alone(own())
        else:
            factor = self._own_factor()
            unit = self._unit()
            noise = loader.progress.noise
            noise.measured(self._square(own()) * factor**2 / unit, self._square(mean()) / unit)
            self._kept = None  # not before: it says which part is looked at

    def _looked_at(self, size: int) -> tuple[slice, int]:
        """Return which part of a gradient of ``size`` numbers to read, and how often it counts."""
        if size < LARGE:
            return slice(None), 1
        loader = self._worker.loader
        first = self._kept[0] if self._kept is not None and self._follows else loader.progress.step
        part = loader.progress.noise.turn(first) % PARTS
        return slice(size * part // PARTS, size * (part + 1) // PARTS), PARTS

    @property
    def _follows(self) -> bool:
        """Whether the gradients of the step before the open one were kept for a comparison."""
        loader = self._worker.loader
        if self._kept is None or not loader.open:
            return False
        return self._kept[0] + 1 == loader.progress.step

    def _alone(self, own: Looked) -> None:
        """Compare a lone worker's gradients with those of the step before, or keep them."""
        loader, unit = self._worker.loader, self._unit()
        step, samples = loader.progress.step, loader.step_input.samples
        kept, follows = self._kept, self._follows
        self._kept = None
        if kept is None or not follows or kept[1] != samples:
            self._kept = (step, samples, self._copy(own, unit))
            return
        before = kept[2]
        squares = (self._square(before) + self._square(own) / unit) / 2
        mean = self._square_of_sum(before, own, unit) / 4
        loader.progress.noise.measured(squares, mean)

    def _own_factor(self) -> float:
        """Return the factor that makes this worker's gradients the mean over its own samples.

        The job's mean gradients are a mean over all samples. The factor is 1 unless gradients are
        accumulated: then they are sums over several batches, weighted by their samples
        (:mod:`edl.core.step.weighting`).
        """
        share = self._worker.loader.step_input.share(0)
        if not share.summed:
            return 1.0
        records = self._worker.loader.records()
        batches = float(records.column("batches").mean())
        batch_size = self._worker.loader.progress.source.batch_size
        mine = samples_for(records, 0)[self._worker.ring.place.rank]
        return batch_size * batches / float(mine)

    def _unit(self) -> float:
        """Return the square of the factor by which a loss scaler has multiplied the gradients."""
        return 1.0

    @abstractmethod
    def _square(self, gradients: Looked) -> float:
        """Return the squared norm of all ``gradients`` together.

        ``gradients`` are pairs of a flat part of a gradient, and of how often this part counts.
        """

    def _square_of_sum(self, kept: Looked, own: Looked, unit: float) -> float:
        """Return the squared norm of ``kept`` + ``own`` / sqrt(``unit``).

        The result is 0 if the two do not have the same parts of the gradients.
        """
        if [len(a) for a, _ in kept] != [len(b) for b, _ in own]:
            return 0.0
        factor = 1.0 / math.sqrt(unit)
        pairs = zip(kept, own, strict=True)
        return self._square([(a + factor * b, times) for (a, times), (b, _) in pairs])

    @staticmethod
    def _copy(gradients: Looked, unit: float) -> Looked:
        """Return a copy of ``gradients``, divided by sqrt(``unit``)."""
        factor = 1.0 / math.sqrt(unit)
        return [(factor * numbers, times) for numbers, times in gradients]
