"""Squared norms of gradients, measured where a step is due, for the gradient noise scale."""

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
    """One optimizer's gradients, of which there is one in the script.

    Of a large gradient an eighth is looked at, and counts eight times, for what Adam makes of it
    costs as much as some steps. All eighths have their turn.

    Several workers compare their own gradients with the mean of all. One that is alone compares
    those of two steps on end, so it keeps those of the first for that long.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._kept: tuple[int, int, Looked] | None = None  # step, samples; alone

    @property
    def wants(self) -> bool:
        """Whether the gradients of the open step are to be shown.

        Not with several optimizers, of which each has a noise of its own.
        """
        loader = self._worker.loader
        if not loader.open or self._worker.warming_up or loader.progress.optimizers > 1:
            return False
        return loader.progress.noise.is_due(loader.progress.step) or self._follows

    def show(self, own: Callable[[], Looked], mean: Callable[[], Looked]) -> None:
        """The step's gradients are reduced, and nothing was changed in them yet.

        Args:
            own: this worker's, whose scale may be off by :meth:`_own_factor`.
            mean: the job's; as ``own`` where this worker is alone.
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
        """Which numbers of a gradient of that size are looked at now, and how often they count."""
        if size < LARGE:
            return slice(None), 1
        loader = self._worker.loader
        first = self._kept[0] if self._kept is not None and self._follows else loader.progress.step
        part = loader.progress.noise.turn(first) % PARTS
        return slice(size * part // PARTS, size * (part + 1) // PARTS), PARTS

    @property
    def _follows(self) -> bool:
        """The first step of a pair was kept, and this is the next."""
        loader = self._worker.loader
        if self._kept is None or not loader.open:
            return False
        return self._kept[0] + 1 == loader.progress.step

    def _alone(self, own: Looked) -> None:
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
        """What makes this worker's gradients the mean over its samples, as the job's are over all.

        Where gradients are accumulated, they are sums of several batches, weighted by their samples
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
        """The square of what a loss scaler has multiplied the gradients by."""
        return 1.0

    @abstractmethod
    def _square(self, gradients: Looked) -> float:
        """The squared norm of all together."""

    def _square_of_sum(self, kept: Looked, own: Looked, unit: float) -> float:
        """That of ``kept`` + ``own`` / sqrt(``unit``); 0 where they are not of the same parts."""
        if [len(a) for a, _ in kept] != [len(b) for b, _ in own]:
            return 0.0
        factor = 1.0 / math.sqrt(unit)
        pairs = zip(kept, own, strict=True)
        return self._square([(a + factor * b, times) for (a, times), (b, _) in pairs])

    @staticmethod
    def _copy(gradients: Looked, unit: float) -> Looked:
        """A copy, over sqrt(``unit``)."""
        factor = 1.0 / math.sqrt(unit)
        return [(factor * numbers, times) for numbers, times in gradients]
