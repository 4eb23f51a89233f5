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

    epoch: int  # how many epochs the job has trained or left
    batches: int  # how many batches of the present epoch it has trained, whatever their sizes
    limit: int  # the number of batches after which the present epoch ends at the latest
    samples: int  # how many samples of the present epoch it has trained


class UpdateInterval(NamedTuple):
    """After which updates Lightning steps an LR scheduler that has `"interval": "step"`."""

    frequency: int  # the `frequency` of the scheduler, in batches; Lightning's default is 1
    # how many batches a group has, by the first epoch in which it has so many; one of them is epoch
    # 0
    accumulated: Mapping[int, int]
    samples: int | None  # the samples of the data set; None: their number is not known
    # the number of the batch after which an epoch ends at the latest, with the workers with which
    # the job began; None: no limit
    limit: int | None = None

    @property
    def is_known(self) -> bool:
        """Whether the steps are known: the groups stay the same, or epochs have a length."""
        one_size = len({*self.accumulated.values()}) == 1
        return one_size or self.samples is not None or self.limit is not None

    def steps(self, trained: int, batch: int, first_epoch: int = 0) -> int:
        """Return how many steps the scheduler has made when a job has trained `trained` samples."""
        if self.samples is None:
            return trained // (batch * self._spacing(self.accumulated[0]))
        epochs, rest = divmod(trained, self.samples)
        return self._steps(epochs, rest // batch, -(-self.samples // batch), first_epoch)

    def limited_steps(self, at: EpochPosition, batch: int, first_epoch: int = 0) -> int:
        """Return how many steps the scheduler has made when a job with a limit is at `at`."""
        assert self.limit is not None
        of_epoch, by_samples = self.limit, 0
        if self.samples is not None:
            of_epoch = min(self.limit, -(-self.samples // batch))
            by_samples = at.samples * of_epoch // self.samples
        trained = min(of_epoch, max(at.batches * of_epoch // at.limit, by_samples))
        return self._steps(at.epoch, trained, of_epoch, first_epoch)

    def _steps(self, epochs: int, batches: int, of_epoch: int, first_epoch: int) -> int:
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
