"""Count the batches of a job's epochs for Lightning's loops: :class:`EpochCounts`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edl.core.step.update_interval import EpochPosition
from edl.framework.batch_number import batch_in_epoch
from edl.framework.process import current_worker


class EpochCounts:
    """Counts the batches of a job's epochs, and holds the numbers that this count depends on."""

    def __init__(self) -> None:
        # the global batch, in samples, of the workers with which the job began, without
        # accumulation; 0: LR schedulers count updates, so it is not used
        self.first_batch = 0
        # the number of batches after which an epoch of those workers ends at the latest; None: no
        # limit
        self.first_limit: int | None = None
        # the same for the present start of the job; a job that was resumed with other workers may
        # have another one
        self.limit: int | None = None
        self.first_epoch = 0  # the Trainer's epoch with which the job began
        # the samples of the data set; None: their number is not known
        self.samples: int | None = None
        self._loaded: Mapping[str, Any] = {}
        self._before = (0, 0)  # an epoch, and its batches that an earlier start has trained

    def enter(self) -> None:
        """Go on where the job is, whose state this worker has got, if there was any."""
        worker = current_worker()
        epoch, batch = self._loaded.get("position", (0, 0))
        is_same = self.limit is not None and self.limit == self._loaded.get("limit")
        if is_same and epoch == worker.loader.epoch:
            self._before = (epoch, batch - batch_in_epoch(worker))

    def end_update(self) -> None:
        """Keep the number of samples of a stream that has ended the job's first epoch."""
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
        """Whether no batch of the present epoch is left, because of the limit."""
        return self.limit is not None and self._batches_ended >= self.limit

    def position(self, trained: int) -> EpochPosition:
        """Return the job's position at a time when it had trained `trained` samples in all."""
        assert self.limit is not None
        progress = current_worker().loader.progress
        if trained == progress.trained and (self.is_at_limit or progress.ledger.finished):
            return EpochPosition(progress.ledger.epoch + 1, 0, self.limit, 0)
        samples = progress.ledger.done - (progress.trained - trained)
        return EpochPosition(progress.ledger.epoch, self._batches_ended, self.limit, samples)

    def state_dict(self) -> dict[str, Any]:
        """Return the present state, made of plain values."""
        return {
            "first_batch": self.first_batch,
            "first_limit": self.first_limit,
            "limit": self.limit,
            "samples": self.samples,
            "position": (current_worker().loader.epoch, self.batch),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over `state`, which `state_dict` has returned on another worker."""
        self._loaded = state
        self.first_batch = state["first_batch"] or self.first_batch
        self.first_limit = state.get("first_limit") or self.first_limit
        self.samples = self.samples or state.get("samples")

    @property
    def _batches_ended(self) -> int:
        loader = current_worker().loader
        return self.batch + (not loader.open and loader.engine.in_hand)

    @property
    def _batches_before(self) -> int:
        epoch, batches = self._before
        return batches if epoch == current_worker().loader.epoch else 0


def old_counts(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of `EpochCounts` for a Trainer's state in a checkpoint of before."""
    return {"first_batch": sum(state.get("first_batch", ()))}
