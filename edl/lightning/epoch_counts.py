"""Count the batches of a job's epochs for Lightning's loops: :class:`EpochCounts`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edl.core.step.update_interval import EpochPosition
from edl.framework.batch_number import batch_in_epoch
from edl.framework.process import current_worker


class EpochCounts:
    """Counts the batches of a job's epochs, and holds the numbers that this count depends on.

    Both are the same on all workers: newcomers get the numbers from the job, and a resumed job gets
    them from its checkpoint. The loop ends an epoch by the count, and LR schedulers follow it.

    Attributes:
        first_batch: the global batch, in samples, of the workers with which the job began, without
            accumulation; 0: LR schedulers count updates, so it is not used.
        first_limit: the number of batches after which an epoch of those workers ends at the latest;
            None: no limit.
        limit: the same for the present start of the job; a job that was resumed with other workers
            may have another one.
        first_epoch: the Trainer's epoch with which the job began.
        samples: the samples of the data set; None: their number is not known.
    """

    def __init__(self) -> None:
        self.first_batch = 0
        self.first_limit: int | None = None
        self.limit: int | None = None
        self.first_epoch = 0
        self.samples: int | None = None
        self._loaded: Mapping[str, Any] = {}
        self._before = (0, 0)  # an epoch, and its batches that an earlier start has trained

    def enter(self) -> None:
        """Go on where the job is, whose state this worker has got, if there was any.

        A job that was resumed in an epoch with a limit has trained some of its batches before. They
        are not counted if the limit is another one now.
        """
        worker = current_worker()
        epoch, batch = self._loaded.get("position", (0, 0))
        is_same = self.limit is not None and self.limit == self._loaded.get("limit")
        if is_same and epoch == worker.loader.epoch:
            self._before = (epoch, batch - batch_in_epoch(worker))

    def end_update(self) -> None:
        """Keep the number of samples of a stream that has ended the job's first epoch.

        A limit is then known to be above it or below it.
        """
        progress = current_worker().loader.progress
        is_first = progress.ledger.epoch == 0 and progress.ledger.finished
        if self.samples is None and self.limit is not None and is_first:
            self.samples = progress.trained

    @property
    def batch(self) -> int:
        """The index of the present batch in its epoch, from 0; between two batches, of the next.

        It begins anew in a job that was resumed in an epoch without a limit.
        """
        return batch_in_epoch(current_worker()) + self._batches_before

    @property
    def is_at_limit(self) -> bool:
        """Whether no batch of the present epoch is left, because of the limit."""
        return self.limit is not None and self._batches_ended >= self.limit

    def position(self, trained: int) -> EpochPosition:
        """Return the job's position at a time when it had trained ``trained`` samples in all.

        It is the time before the present update, or before the last one, if this worker has missed
        that one.
        """
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
        """Take over ``state``, which :meth:`state_dict` has returned on another worker."""
        self._loaded = state
        self.first_batch = state["first_batch"] or self.first_batch
        self.first_limit = state.get("first_limit") or self.first_limit
        self.samples = self.samples or state.get("samples")

    @property
    def _batches_ended(self) -> int:
        """How many batches of the epoch are trained; in an open step, before its last one."""
        loader = current_worker().loader
        return self.batch + (not loader.open and loader.engine.in_hand)

    @property
    def _batches_before(self) -> int:
        epoch, batches = self._before
        return batches if epoch == current_worker().loader.epoch else 0


def old_counts(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of :class:`EpochCounts` for a Trainer's state in a checkpoint of before.

    Earlier versions of edl saved a list of ``first_batch`` at most, which is empty in a training by
    ``max_steps``.
    """
    return {"first_batch": sum(state.get("first_batch", ()))}
