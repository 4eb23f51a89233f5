"""Measure squared norms of gradients, from which the gradient noise scale is computed.

Two norms are measured (:class:`NoiseMeter`): of each worker's own gradient, and of the job's mean
gradient. The noise scale, a number of samples, says how large a global batch is worth its cost.
:mod:`edl.worker.progress` chooses the steps in which this is done. The scale is defined in
:mod:`edl.step.noise`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from edl.step.record import samples_for
from edl.worker.worker import Worker

Looked = Sequence[tuple[Any, int]]  # parts of gradients, flat, and how often each counts

# Of a large gradient one part is read and counted so often, another each time: the norms of all of
# it would take as long as several steps.
PARTS = 8
LARGE = 4096  # numbers


class NoiseMeter(ABC):
    """A meter of gradient norms on one worker, for a script with one optimizer."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._kept: tuple[int, int, Looked] | None = None  # step, samples; alone

    @property
    def wants(self) -> bool:
        """Whether to measure the open step, so its gradients must be given to `show`."""
        loader = self._worker.loader
        if not loader.open or self._worker.warming_up or loader.progress.optimizers > 1:
            return False  # the gradients of each optimizer have another noise scale
        return loader.progress.noise.is_due(loader.progress.step) or self._follows

    def show(self, own: Callable[[], Looked], mean: Callable[[], Looked]) -> None:
        """Measure the open step's gradients, after the allreduce and before they are changed."""
        loader = self._worker.loader
        if not loader.engine.batches.samples:
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
        """Return the slice of a flat gradient to read in this step, and how often it counts."""
        if size < LARGE:
            return slice(None), 1
        loader = self._worker.loader
        # A lone worker measures two steps together, and reads the same part in both.
        first = self._kept[0] if self._kept is not None and self._follows else loader.progress.step
        part = loader.progress.noise.turn(first) % PARTS
        return slice(size * part // PARTS, size * (part + 1) // PARTS), PARTS

    @property
    def _follows(self) -> bool:
        """Whether this lone worker has kept the gradients of the step right before the open one."""
        loader = self._worker.loader
        if self._kept is None or not loader.open:
            return False
        return self._kept[0] + 1 == loader.progress.step

    def _alone(self, own: Looked) -> None:
        """Measure a lone worker's gradients with those of the step before, or keep them."""
        loader, unit = self._worker.loader, self._unit()
        step, samples = loader.progress.step, loader.engine.batches.samples
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
        """Return the factor that makes this worker's gradients the mean over its own samples."""
        share = self._worker.loader.engine.batches.share(0)
        if not share.summed:
            return 1.0
        # They are sums over batches, each weighted with its samples over the nominal size, and by
        # the mean number of batches (`edl.step.weighting`).
        records = self._worker.loader.records()  # of all workers, which have arrived
        batches = float(records.column("batches").mean())
        batch_size = self._worker.loader.progress.source.batch_size
        mine = samples_for(records, 0)[self._worker.ring.place.rank]
        return batch_size * batches / float(mine)

    def _unit(self) -> float:
        return 1.0  # the square of the loss scale; a framework with loss scalers overrides this

    @abstractmethod
    def _square(self, gradients: Looked) -> float:
        """Return the sum of the squared norms of all parts, each as often as it counts."""

    def _square_of_sum(self, kept: Looked, own: Looked, unit: float) -> float:
        """Return the squared norm of the sum of two steps' gradients, kept + own / sqrt(unit)."""
        if [len(a) for a, _ in kept] != [len(b) for b, _ in own]:
            return 0.0
        factor = 1.0 / math.sqrt(unit)
        pairs = zip(kept, own, strict=True)
        return self._square([(a + factor * b, times) for (a, times), (b, _) in pairs])

    @staticmethod
    def _copy(gradients: Looked, unit: float) -> Looked:
        factor = 1.0 / math.sqrt(unit)
        return [(factor * numbers, times) for numbers, times in gradients]
