"""Compute how many steps an LR scheduler makes that Lightning steps after updates.

The number of updates depends on the workers, so a job counts something else. Where the samples end
an epoch, it counts samples. Where a number of batches ends it, such as ``limit_train_batches``, the
samples of an epoch depend on the workers, too, and the job counts its epochs and the batches in
each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple


class EpochPosition(NamedTuple):
    """How much of its epochs a job has trained that has a limit of batches; all workers know it."""

    epoch: int  # epochs that the job has trained or left
    batches: int  # trained of the present epoch, whatever their sizes
    limit: int  # batches after which the present epoch ends at the latest
    samples: int  # trained of the present epoch


class UpdateInterval(NamedTuple):
    """After which updates Lightning steps an LR scheduler that has `"interval": "step"`."""

    # Lightning numbers the batches of each epoch from 1, updates after each group of accumulated
    # batches and after the last batch of an epoch, and steps the scheduler after each update whose
    # last batch has a multiple of `frequency` as its number.
    frequency: int
    # the batches of a group, by the first epoch in which it has so many, of which one is 0
    accumulated: Mapping[int, int]
    samples: int | None  # of the data set; None: not known
    # batches after which an epoch ends at the latest, with the first workers; None: no limit
    limit: int | None = None

    @property
    def is_known(self) -> bool:
        """Whether the steps are known: the groups stay the same, or epochs have a length."""
        one_size = len({*self.accumulated.values()}) == 1
        return one_size or self.samples is not None or self.limit is not None

    def steps(self, trained: int, batch: int, first_epoch: int = 0) -> int:
        """Return the steps after `trained` samples of a job with a constant global batch."""
        if self.samples is None:
            return trained // (batch * self._spacing(self.accumulated[0]))
        epochs, rest = divmod(trained, self.samples)
        return self._steps(epochs, rest // batch, -(-self.samples // batch), first_epoch)

    def limited_steps(self, at: EpochPosition, batch: int, first_epoch: int = 0) -> int:
        """Return the steps of a job with a limit, as if its global batch were constant."""
        assert self.limit is not None
        of_epoch, by_samples = self.limit, 0
        if self.samples is not None:
            of_epoch = min(self.limit, -(-self.samples // batch))
            by_samples = at.samples * of_epoch // self.samples
        # By batches or by samples, whichever are nearer to the end of the epoch.
        trained = min(of_epoch, max(at.batches * of_epoch // at.limit, by_samples))
        return self._steps(at.epoch, trained, of_epoch, first_epoch)

    def _steps(self, epochs: int, batches: int, of_epoch: int, first_epoch: int) -> int:
        # Another training has trained the epochs before `first_epoch`.
        starts, last = sorted(self.accumulated), first_epoch + epochs
        steps = 0
        for start, stop in zip(starts, [*starts[1:], last], strict=True):
            count = max(0, min(stop, last) - max(start, first_epoch))
            steps += count * self._steps_of_epoch(of_epoch, self.accumulated[start])
        now = self.accumulated[max(start for start in starts if start <= last)]
        return steps + batches // self._spacing(now)

    def _steps_of_epoch(self, batches: int, accumulated: int) -> int:
        is_last_one_more = batches % accumulated != 0 and batches % self.frequency == 0
        return batches // self._spacing(accumulated) + is_last_one_more

    def _spacing(self, accumulated: int) -> int:
        return math.lcm(accumulated, self.frequency)
