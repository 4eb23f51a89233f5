"""Count the batches of a job's epochs for Lightning's loops: :class:`EpochCounts`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch.optim.lr_scheduler import LRScheduler

from edl.binding.loop import batch_in_epoch
from edl.binding.process import current_worker
from edl.step.source import EpochPosition, UpdateInterval
from edl.torch.lr_schedules import InSamples, has_own_function, steps_before_samples

if TYPE_CHECKING:
    from lightning.pytorch import Trainer


class EpochCounts:
    """The batches of a job's epochs, and what their count depends on, the same on all workers."""

    def __init__(self) -> None:
        # The global batch of the workers with which the job began, in samples, without
        # accumulation; 0: not used, as LR schedulers count updates.
        self.first_batch = 0
        self.first_limit: int | None = None  # the most batches of an epoch of those workers
        self.limit: int | None = None  # the same for the present start, maybe with other workers
        self.first_epoch = 0  # the Trainer's epoch with which the job began
        self.samples: int | None = None  # of the data set; None: not known
        self._loaded: Mapping[str, Any] = {}
        self._before = (0, 0)  # an epoch, and its batches that an earlier start has trained

    def enter(self) -> None:
        """Go on where the job is, whose state this worker has got, if there was any."""
        worker = current_worker()
        epoch, batch = self._loaded.get("position", (0, 0))
        # Batches that an earlier start trained do not count against another limit.
        is_same = self.limit is not None and self.limit == self._loaded.get("limit")
        if is_same and epoch == worker.loader.epoch:
            self._before = (epoch, batch - batch_in_epoch(worker))

    def end_update(self) -> None:
        """Learn how many samples a stream has, when it has ended the job's first epoch."""
        progress = current_worker().loader.progress
        is_first = progress.ledger.epoch == 0 and progress.ledger.finished
        if self.samples is None and self.limit is not None and is_first:
            self.samples = progress.trained

    @property
    def batch(self) -> int:
        """The index of the present batch in its epoch, from 0; between two batches, of the next."""
        return batch_in_epoch(current_worker()) + self._batches_before

    @property
    def is_at_limit(self) -> bool:
        return self.limit is not None and self._batches_ended >= self.limit

    def position(self, trained: int) -> EpochPosition:
        # Before the present update, or the last one if this worker has missed that.
        assert self.limit is not None
        progress = current_worker().loader.progress
        if trained == progress.trained and (self.is_at_limit or progress.ledger.finished):
            return EpochPosition(progress.ledger.epoch + 1, 0, self.limit, 0)
        samples = progress.ledger.done - (progress.trained - trained)
        return EpochPosition(progress.ledger.epoch, self._batches_ended, self.limit, samples)

    def state_dict(self) -> dict[str, Any]:
        return {
            "first_batch": self.first_batch,
            "first_limit": self.first_limit,
            "limit": self.limit,
            "samples": self.samples,
            "position": (current_worker().loader.epoch, self.batch),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._loaded = state
        self.first_batch = state["first_batch"] or self.first_batch
        self.first_limit = state.get("first_limit") or self.first_limit
        self.samples = self.samples or state.get("samples")

    @property
    def _batches_ended(self) -> int:
        loader = current_worker().loader
        # In an open step, those before its last batch.
        return self.batch + (not loader.open and loader.engine.in_hand)

    @property
    def _batches_before(self) -> int:
        epoch, batches = self._before
        return batches if epoch == current_worker().loader.epoch else 0


def old_counts(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of `EpochCounts` for a Trainer's state in a checkpoint of before."""
    # It has a list of `first_batch` at most, which is empty in a training by `max_steps`.
    return {"first_batch": sum(state.get("first_batch", ()))}


# ------------------------------------------------------------
# Let LR schedulers that Lightning steps after updates follow the job: `InBatches`.


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
    found = {0: trainer.accumulate_grad_batches}
    for each in trainer.callbacks:
        # It sets the number in the Trainer only when an epoch begins.
        if any(kind.__name__ == "GradientAccumulationScheduler" for kind in type(each).__mro__):
            found |= each.scheduling
    return found
