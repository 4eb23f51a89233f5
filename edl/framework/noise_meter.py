"""Measure squared norms of gradients, from which the gradient noise scale is computed.

Two norms are measured (:class:`NoiseMeter`): of each worker's own gradient, and of the job's mean
gradient. The noise scale, a number of samples, says how large a global batch is worth its cost.
:mod:`edl.worker.gradient_noise` chooses the steps in which this is done. The scale is defined in
:mod:`edl.core.step.noise_scale`.
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
    """A meter of gradient norms on one worker, for a script with one optimizer.

    The gradient noise scale (:mod:`edl.core.step.noise_scale`) is computed from the norms. Of a
    large gradient only one eighth is read, and counted eight times, because the norms of all of it
    would take as long as several steps. Each measured step reads another eighth.

    If there are several workers, a worker measures its own gradients and the mean of all. A worker
    that is alone measures the gradients of two consecutive steps and their mean, so it keeps those
    of the earlier step.

    Each framework has a subclass, and calls :meth:`show` in each step in which :attr:`wants` is
    true.

    Args:
        worker: the worker that this process is.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._kept: tuple[int, int, Looked] | None = None  # step, samples; alone

    @property
    def wants(self) -> bool:
        """Whether to measure the open step, so its gradients must be given to :meth:`show`.

        True in the steps that the noise estimate chooses, and for a lone worker also in the step
        after each of them. False between two steps, in a warm-up, and for a script with several
        optimizers, because the gradients of each have another noise scale.
        """
        loader = self._worker.loader
        if not loader.open or self._worker.warming_up or loader.progress.optimizers > 1:
            return False
        return loader.progress.noise.is_due(loader.progress.step) or self._follows

    def show(self, own: Callable[[], Looked], mean: Callable[[], Looked]) -> None:
        """Measure the gradients of the open step, for the estimate of the noise scale.

        The norms are stored, and go to the other workers with the next step record. Call this after
        the allreduce, before clipping or the optimizer changes the gradients. Both functions return
        pairs: a flat slice of a gradient, and how often the slice counts. If this worker has no
        samples in the step, nothing is measured and neither is called.

        Args:
            own: returns this worker's own gradients, which :meth:`_own_factor` scales.
            mean: returns the job's mean gradients; not called if this worker is alone.
        """
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
        """Return the slice of a flat gradient to read in this step, and how often it counts.

        The slice is all of a small gradient (below 4096 elements), which counts once, or one eighth
        of a large one, which counts 8 times. Each measurement has the next eighth; a lone worker,
        which measures two steps together, reads the same one in both.

        Args:
            size: the number of elements of the gradient.

        Returns:
            A pair: the slice, and how often it counts.
        """
        if size < LARGE:
            return slice(None), 1
        loader = self._worker.loader
        first = self._kept[0] if self._kept is not None and self._follows else loader.progress.step
        part = loader.progress.noise.turn(first) % PARTS
        return slice(size * part // PARTS, size * (part + 1) // PARTS), PARTS

    @property
    def _follows(self) -> bool:
        """Whether this lone worker has kept the gradients of the step right before the open one.

        False between two steps.
        """
        loader = self._worker.loader
        if self._kept is None or not loader.open:
            return False
        return self._kept[0] + 1 == loader.progress.step

    def _alone(self, own: Looked) -> None:
        """Measure a lone worker's gradients together with its gradients of the step before.

        If the earlier gradients were not kept, or their step had another number of samples, nothing
        is measured, and a copy of ``own`` is kept for the next step. Else nothing is kept after the
        call.

        Args:
            own: this worker's gradients: pairs of a flat slice, and how often the slice counts.
        """
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
        """Return the factor that turns this worker's gradients into the mean over its own samples.

        The factor is 1 unless gradients are accumulated. Then they are sums over several batches,
        each weighted with its samples over b, and the factor is b times the mean number of batches
        per worker over this worker's samples; b is the nominal batch size
        (:mod:`edl.core.step.weighting`). The step records of all workers must have arrived. The
        job's mean gradients need no factor; they are a mean over all samples. The caller has
        checked that this worker has samples in the step.

        Raises:
            ZeroDivisionError: gradients are accumulated, and this worker has no samples in the
                step.
        """
        share = self._worker.loader.engine.batches.share(0)
        if not share.summed:
            return 1.0
        records = self._worker.loader.records()
        batches = float(records.column("batches").mean())
        batch_size = self._worker.loader.progress.source.batch_size
        mine = samples_for(records, 0)[self._worker.ring.place.rank]
        return batch_size * batches / float(mine)

    def _unit(self) -> float:
        """Return the square of the factor by which a loss scaler has multiplied the open gradients.

        It is 1 here; a framework with loss scalers overrides this method.
        """
        return 1.0

    @abstractmethod
    def _square(self, gradients: Looked) -> float:
        """Return the squared norm of all ``gradients`` together.

        It is the sum, over all pairs, of the part's squared norm times how often the part counts.

        Args:
            gradients: pairs of a part of a gradient, flat, and how often this part counts.
        """

    def _square_of_sum(self, kept: Looked, own: Looked, unit: float) -> float:
        """Return the squared norm of the sum of two steps' gradients, kept + own / sqrt(unit).

        The result is 0 if the parts in ``kept`` and ``own`` differ in number or length.

        Args:
            kept: the gradients of the step before, without loss scale, as pairs of a flat part and
                how often it counts.
            own: the gradients of the open step, in the same form.
            unit: the square of the loss scale in ``own``; 1 without one.
        """
        if [len(a) for a, _ in kept] != [len(b) for b, _ in own]:
            return 0.0
        factor = 1.0 / math.sqrt(unit)
        pairs = zip(kept, own, strict=True)
        return self._square([(a + factor * b, times) for (a, times), (b, _) in pairs])

    @staticmethod
    def _copy(gradients: Looked, unit: float) -> Looked:
        """Return a copy of gradients, without their loss scale.

        Args:
            gradients: pairs of a flat part of a gradient, and how often this part counts.
            unit: the square of the factor by which a loss scaler has multiplied them; 1: none has.
        """
        factor = 1.0 / math.sqrt(unit)
        return [(factor * numbers, times) for numbers, times in gradients]
