"""Describe one update of the model: its number, its samples, and what its learning rate follows."""

from __future__ import annotations

from typing import NamedTuple

from edl.core.step.noise_scale import UNKNOWN, NoiseScale
from edl.worker.loader_progress import LoaderProgress


class Update(NamedTuple):
    """One update of the model, as all workers know it."""

    number: int  # the number of the update, counted from 0
    before: int  # how many samples the job has trained without this update
    after: int  # how many samples the job has trained with this update
    # the changes of the global batch until then, oldest first, each as (number of the first update
    # with the new size, size in samples)
    batches: tuple[tuple[int, int], ...]
    # the estimate of the gradient noise scale that is known before this update
    noise: NoiseScale = UNKNOWN
    # the estimate that was known before the update before this one
    last_noise: NoiseScale = UNKNOWN
    # `batches` as they were when the checkpoint was made that the job was resumed from; empty: the
    # job was not resumed, or the checkpoint does not say it
    resumed: tuple[tuple[int, int], ...] = ()

    @property
    def last_batches(self) -> tuple[tuple[int, int], ...]:
        """The changes of the global batch with which the update before this one was made."""
        # For the first update since the job was resumed they are those in the checkpoint.
        is_first = bool(self.batches) and self.batches[0][0] == self.number
        return self.resumed if is_first and self.resumed else self.batches


def last_update(progress: LoaderProgress) -> Update:
    """Return the last update that the job has made, even if this worker missed it."""
    # In the result `last_noise` equals `noise`, since the estimate before that is not kept.
    known = progress.noise.before  # what all have made it with
    before, after = progress.trained_before, progress.trained
    return Update(progress.step - 1, before, after, progress.batches, known, known)
