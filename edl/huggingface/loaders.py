"""Put the batches of edl's loader on the worker's device, as Accelerate's loaders do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.utils.data
from accelerate.utils import send_to_device

import edl.torch
from edl.framework.process import current_worker
from edl.framework.source import refuse_logical


class TrainingDataLoader(edl.torch.DataLoader):
    """edl's loader, which puts each batch on the worker's device, as Accelerate's loaders do.

    Args:
        device: where the batches are put; None: they stay where they are.
        non_blocking: whether the copy may overlap with computation.
        options: the arguments of ``edl.torch.DataLoader``.

    Attributes:
        is_training: whether the script is inside of its loop over ``epochs`` or ``steps``.
    """

    def __init__(self, device: torch.device | None, non_blocking: bool, **options: Any) -> None:
        refuse_logical(current_worker(), "Accelerate counts batches, so it trains")
        super().__init__(**options)
        self._device = device
        self._non_blocking = non_blocking
        self.is_training = False

    def _epochs(self, count: int | None, max_steps: int | None) -> Iterator[int]:
        for epoch in super()._epochs(count, max_steps):
            self.is_training = True
            yield epoch
            self.is_training = False

    def __iter__(self) -> Iterator[Any]:
        batches = super().__iter__()  # which refuses a loop outside of epochs()
        if self._device is None:
            return batches
        return (send_to_device(batch, self._device, self._non_blocking) for batch in batches)
