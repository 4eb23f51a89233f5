"""Compute how many steps an LR scheduler makes that Lightning steps after updates.

A job counts samples in place of updates, because their number depends on the workers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple


class UpdateInterval(NamedTuple):
    """After which updates Lightning steps an LR scheduler that has ``"interval": "step"``.

    Lightning numbers the batches of each epoch from 1. It makes an update after each group of
    accumulated batches, and after the last batch of an epoch. It steps the scheduler after each
    update whose last batch has a multiple of ``frequency`` as its number.

    Attributes:
        frequency: the ``frequency`` of the scheduler, in batches; Lightning's default is 1.
        accumulated: how many batches a group has, by the first epoch in which it has so many; one
            of them is epoch 0.
        samples: the samples of the data set; None: their number is not known.
        limit: the number of the batch after which an epoch ends at the latest; None: no limit.
    """

    frequency: int
    accumulated: Mapping[int, int]
    samples: int | None
    limit: int | None = None

    @property
    def is_known(self) -> bool:
        """Whether :meth:`steps` is known: the groups stay the same, or epochs have a length."""
        one_size = len({*self.accumulated.values()}) == 1
        return one_size or self.samples is not None or self.limit is not None

    def steps(self, trained: int, batch: int, first_epoch: int = 0) -> int:
        """Return how many steps the scheduler has made when a job has trained ``trained`` samples.

        They are those of a job whose global batch is always ``batch``.

        Args:
            trained: the samples that the job has trained, in all epochs.
            batch: the global batch, in samples, without accumulation.
            first_epoch: the epoch with which the job began; another training has trained those
                before.
        """
        epoch = self._samples_of_epoch(batch)
        if epoch is None:
            return trained // (batch * self._spacing(self.accumulated[0]))
        epochs, rest = divmod(trained, epoch)
        batches, last = -(-epoch // batch), first_epoch + epochs
        starts = sorted(self.accumulated)
        steps = 0
        for start, stop in zip(starts, [*starts[1:], last], strict=True):
            count = max(0, min(stop, last) - max(start, first_epoch))
            steps += count * self._steps_of_epoch(batches, self.accumulated[start])
        now = self.accumulated[max(start for start in starts if start <= last)]
        return steps + rest // (batch * self._spacing(now))

    def _samples_of_epoch(self, batch: int) -> int | None:
        if self.limit is None:
            return self.samples
        limited = self.limit * batch
        return limited if self.samples is None else min(self.samples, limited)

    def _steps_of_epoch(self, batches: int, accumulated: int) -> int:
        is_last_one_more = batches % accumulated != 0 and batches % self.frequency == 0
        return batches // self._spacing(accumulated) + is_last_one_more

    def _spacing(self, accumulated: int) -> int:
        """Return after how many batches the next step comes."""
        return math.lcm(accumulated, self.frequency)
