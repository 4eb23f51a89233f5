"""Let LR schedulers that Lightning steps after updates count samples: :class:`InBatches`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.optim.lr_scheduler import LRScheduler

from edl.core.step.update_interval import UpdateInterval
from edl.torch.lr_schedule import InSamples
from edl.torch.schedulers import steps_before_samples

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


class InBatches(InSamples):
    """A wrapper of an LR scheduler that makes as many steps as Lightning with a fixed global batch.

    Args:
        scheduler: the scheduler.
        batch: the global batch, in samples, without accumulation.
        interval: after which updates the scheduler makes a step.
    """

    def __init__(self, scheduler: LRScheduler, batch: int, interval: UpdateInterval) -> None:
        super().__init__(scheduler, batch)
        self.interval = interval
        self.first_epoch = 0

    def steps_of(self, samples: int) -> int:
        """Return how many steps the scheduler has made when the job has trained ``samples``."""
        made = self.interval.steps(samples, self.batch, self.first_epoch)
        return steps_before_samples(self.scheduler) + made


def accumulated_batches(trainer: Trainer) -> dict[int, int]:
    """Return how many batches a Trainer accumulates for an update, by the first epoch of each.

    A GradientAccumulationScheduler sets the number in the Trainer when an epoch begins, so that the
    Trainer does not have it before.
    """
    found = {0: trainer.accumulate_grad_batches}
    for each in trainer.callbacks:
        if any(kind.__name__ == "GradientAccumulationScheduler" for kind in type(each).__mro__):
            found |= each.scheduling
    return found
