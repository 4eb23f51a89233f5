"""Keep the data of the last batch for padding batches, however the script changes what it gets."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

PLAIN = (torch.Tensor, np.ndarray, np.generic, str, bytes, int, float, complex, type(None))


class PaddingData:
    """The data of padding batches: those of the batch before, as they were loaded."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load
        self._kept: Any = None
        self._tensors: list[tuple[torch.Tensor, object]] | None = None  # None: no data are kept

    def keep(self, data: Any) -> None:
        """Keep `data`, a batch that the script is about to get."""
        self._tensors = []
        self._kept = self._copied(data, self._tensors)

    def take(self) -> Any:
        """Return the data that were kept, in new containers; load a batch if they are of no use."""
        kept = self._tensors
        if kept is None or any(_state(tensor) != state for tensor, state in kept):
            self.keep(self._load())
        return self._copied(self._kept, [])  # the script may change the containers

    def _copied(self, data: Any, tensors: list[tuple[torch.Tensor, object]]) -> Any:
        """Return `data` with new containers; append its tensors with their states to a list."""
        if isinstance(data, torch.Tensor):
            tensors.append((data, _state(data)))
        if isinstance(data, PLAIN):
            return data
        if type(data) is dict:
            return {name: self._copied(value, tensors) for name, value in data.items()}
        if type(data) in (list, tuple):
            return type(data)(self._copied(value, tensors) for value in data)
        try:
            return copy.copy(data)
        except Exception:  # noqa: BLE001 - an object of the script's, which then is shared
            return data


def _state(tensor: torch.Tensor) -> object:
    writes = 0 if tensor.is_inference() else tensor._version
    return writes, tensor.shape
