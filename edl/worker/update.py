"""Describe one update of the model: its number, its samples, and what its learning rate follows."""

from __future__ import annotations

from typing import NamedTuple

from edl.core.step.noise_scale import UNKNOWN, NoiseScale
from edl.worker.loader_progress import LoaderProgress


class Update(NamedTuple):
    """One update of the model, as all workers know it."""

    number: int  # from 0
    before: int  # samples that the job has trained without it
    after: int  # and with it
    # changes of the global batch until then, oldest first: (first update with the new size,
    # samples)
    batches: tuple[tuple[int, int], ...]
    noise: NoiseScale = UNKNOWN  # as known before this update
    last_noise: NoiseScale = UNKNOWN  # as known before the update before
    # `batches` of the checkpoint from which the job was resumed; empty: none, or not known
    resumed: tuple[tuple[int, int], ...] = ()

    @property
    def last_batches(self) -> tuple[tuple[int, int], ...]:
        """The changes of the global batch with which the update before this one was made."""
        is_first = bool(self.batches) and self.batches[0][0] == self.number
        return self.resumed if is_first and self.resumed else self.batches


def last_update(progress: LoaderProgress) -> Update:
    """Return the last update that the job has made, even if this worker missed it."""
    known = progress.noise.before  # what all have made it with; the one before is not kept
    before, after = progress.trained_before, progress.trained
    return Update(progress.step - 1, before, after, progress.batches, known, known)
