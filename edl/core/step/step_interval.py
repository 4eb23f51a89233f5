"""Define after how many samples an LR scheduler makes a step: :class:`StepInterval`."""

from __future__ import annotations

from typing import NamedTuple


class StepInterval(NamedTuple):
    """After how many samples an LR scheduler makes a step that counts samples."""

    batch: int  # samples of one step
    # samples of an epoch, of which the rest at the end counts as one more step; None: epochs make
    # no difference
    epoch: int | None = None

    def steps(self, samples: int) -> int:
        """Return how many steps a scheduler makes in the first `samples` samples of a job."""
        if self.epoch is None:
            return samples // self.batch
        epochs, rest = divmod(samples, self.epoch)
        return epochs * self._steps_of_epoch(self.epoch) + rest // self.batch

    def samples(self, steps: int) -> int:
        """Return after how many samples of a job a scheduler has made `steps` steps."""
        if self.epoch is None:
            return steps * self.batch
        epochs, rest = divmod(steps, self._steps_of_epoch(self.epoch))
        return epochs * self.epoch + rest * self.batch

    def _steps_of_epoch(self, epoch: int) -> int:
        return -(-epoch // self.batch)
