"""The training loader of an Accelerate script, without an import of Hugging Face's libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import edl.torch
from edl.binding.loop import refuse_logical
from edl.binding.process import current_worker
from edl.torch.lr_schedules import InSamples


class TrainingDataLoader(edl.torch.DataLoader):
    """edl's loader, which puts each batch on the worker's device, as Accelerate's loaders do."""

    def __init__(self, put: Callable[[Any], Any] | None, **options: Any) -> None:
        refuse_logical(current_worker(), "Accelerate counts batches, so it trains")
        super().__init__(**options)
        self._put = put
        self.is_training = False  # the script is inside of its loop over `epochs` or `steps`
        self._counts_updates = False  # the length of the training is a number of updates
        self._in_samples: list[Any] = []
        self._has_batch = False  # the script is inside of its loop over batches

    @property
    def has_padding(self) -> bool:
        """Whether the script has a padding batch at present, whose samples count for nothing."""
        return self._has_batch and current_worker().loader.batch_weight == 0

    def count_samples(self, prepared: Any, batch: int) -> None:
        """Let an AcceleratedScheduler make one step for each `batch` samples of the job."""
        samples: Any = self.dataset
        is_wrapped = isinstance(prepared.scheduler, InSamples)
        # It stays as it is where a number of updates ends the training: one step for each of them.
        if self._counts_updates or is_wrapped or not hasattr(samples, "__len__"):
            return
        prepared.scheduler = InSamples(prepared.scheduler, batch, len(samples))
        self._in_samples.append(prepared)

    def _epochs(self, count: int | None, max_steps: int | None) -> Iterator[int]:
        self._counts_updates = count is None and max_steps is not None
        if self._counts_updates:
            for prepared in self._in_samples:
                prepared.scheduler = prepared.scheduler.release()
            self._in_samples.clear()
        for epoch in super()._epochs(count, max_steps):
            self.is_training = True
            yield epoch
            self.is_training = False

    def __iter__(self) -> Iterator[Any]:
        return self._given(super().__iter__())  # which refuses a loop outside of epochs()

    def _given(self, batches: Iterator[Any]) -> Iterator[Any]:
        try:
            for batch in batches:
                self._has_batch = True
                yield batch if self._put is None else self._put(batch)
        finally:
            self._has_batch = False
