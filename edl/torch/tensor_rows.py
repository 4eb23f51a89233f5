"""Read the samples of a ``TensorDataset`` a batch at once.

PyTorch's loader takes each sample out of the tensors and stacks the samples again.
:class:`TensorRows` indexes each tensor once for a batch. It gives the same bits in less time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Subset, TensorDataset


class TensorRows(torch.utils.data.Dataset[Any]):
    """A data set for PyTorch's loader that reads the samples of another one a batch at once.

    The loader gets :func:`as_read` as its collate function.

    Args:
        dataset: a data set for which :func:`is_of_tensors` is True.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getitems__(self, items: list[int]) -> list[torch.Tensor]:
        """Return for each tensor its rows of the samples ``items``, stacked in a new tensor."""
        dataset = self._dataset
        if isinstance(dataset, Subset):
            items = [int(dataset.indices[item]) for item in items]
            dataset = dataset.dataset
        rows = torch.as_tensor(items)
        return [tensor.index_select(0, rows.to(tensor.device)) for tensor in dataset.tensors]


def is_of_tensors(dataset: Any) -> bool:
    """Return whether ``dataset`` is a TensorDataset, or a Subset of one (``random_split``).

    False for derived classes, which may do more to a sample, and for tensors whose rows PyTorch's
    default collate function does not just copy one after the other: sparse, nested and not
    contiguous ones, and those of a derived class.
    """
    if type(dataset) is Subset:
        dataset = dataset.dataset
    return type(dataset) is TensorDataset and all(map(_is_plain, dataset.tensors))


def as_read(batch: Any) -> Any:
    """Return ``batch``: the collate function of a loader whose data set reads whole batches."""
    return batch


def _is_plain(tensor: torch.Tensor) -> bool:
    dense = tensor.layout == torch.strided and not tensor.is_nested
    return type(tensor) is torch.Tensor and dense and tensor.is_contiguous()
