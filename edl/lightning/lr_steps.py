"""Let LR schedulers that Lightning steps after updates follow the job: :class:`InBatches`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.optim.lr_scheduler import LRScheduler

from edl.lightning.epoch_counts import EpochCounts
from edl.step.order import UpdateInterval
from edl.torch.lr_schedules import InSamples, has_own_function, steps_before_samples

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


class InBatches(InSamples):
    """An LR scheduler that makes as many steps as Lightning with a fixed global batch."""

    def __init__(
        self, scheduler: LRScheduler, interval: UpdateInterval, counts: EpochCounts
    ) -> None:
        super().__init__(scheduler, counts.first_batch)
        # The state of a scheduler has its steps, but not the function of a LambdaLR: that is made
        # anew at each start, for the global batch of the workers then.
        self._own_batch = counts.first_batch if has_own_function(scheduler) else None
        self._interval = interval
        self._counts = counts

    def steps_of(self, samples: int) -> int:
        counts = self._counts
        batch, limit = counts.first_batch, counts.first_limit
        if self._own_batch is not None:
            batch, limit = self._own_batch, counts.limit
        interval = self._interval._replace(samples=counts.samples, limit=limit)
        first_epoch = counts.first_epoch
        if counts.limit is None:
            made = interval.steps(samples, batch, first_epoch)
        else:
            made = interval.limited_steps(counts.position(samples), batch, first_epoch)
        return steps_before_samples(self.scheduler) + made


def accumulated_batches(trainer: Trainer) -> dict[int, int]:
    """Return how many batches a Trainer accumulates for an update, by the first epoch of each."""
    found = {0: trainer.accumulate_grad_batches}
    for each in trainer.callbacks:
        # It sets the number in the Trainer only when an epoch begins.
        if any(kind.__name__ == "GradientAccumulationScheduler" for kind in type(each).__mro__):
            found |= each.scheduling
    return found
