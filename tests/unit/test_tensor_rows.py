"""A TensorDataset's batches, read at once: the bits that PyTorch's loader gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, random_split

from edl.torch.tensor_rows import TensorRows, as_read, is_of_tensors

ORDER = [[3, 1, 1, 2], [0]]  # indices of batches


class Doubled(TensorDataset):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return tuple(2 * tensor for tensor in super().__getitem__(index))


def samples() -> TensorDataset:
    numbers = torch.arange(60.0).reshape(10, 2, 3)
    return TensorDataset(numbers, torch.arange(10), numbers[:, 0, 0] > 20)


def batches(dataset: Dataset[Any], **options: Any) -> list[Any]:
    return list(DataLoader(dataset, batch_sampler=ORDER, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "dataset",
    [samples(), random_split(samples(), [4, 6])[1], Subset(samples(), torch.tensor([9, 7, 5, 3]))],  # type: ignore[arg-type]
)
def test_it_gives_what_the_default_collate_function_makes(dataset: Any) -> None:
    assert is_of_tensors(dataset)
    for read, wanted in zip(
        batches(TensorRows(dataset), collate_fn=as_read), batches(dataset), strict=True
    ):
        assert type(read) is type(wanted)
        for mine, theirs in zip(read, wanted, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
            assert mine.stride() == theirs.stride()


def test_tensors_may_be_replaced() -> None:
    data = samples()
    rows = TensorRows(data)
    data.tensors = (torch.ones(10),)
    assert rows.__getitems__([1, 2])[0].tolist() == [1, 1]


def test_only_data_sets_whose_samples_are_just_stacked_are_read_so() -> None:
    sparse = torch.eye(3).to_sparse()
    others: list[Any] = [
        Doubled(torch.ones(3)),
        Subset(Subset(samples(), [1]), [0]),
        TensorDataset(sparse),
        TensorDataset(torch.ones(3, 2, 5).mT),
        TensorDataset(torch.nn.Parameter(torch.ones(3))),
        [1, 2],
    ]
    assert not any(map(is_of_tensors, others))
