"""A TensorDataset's batches, read at once: the bits that PyTorch's loader gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, random_split
from torch.utils.data._utils.collate import collate_tensor_fn, default_collate_fn_map

from edl.torch.loader import TensorRows, as_read, is_of_tensors

ORDER = [[3, 1, 1, 2], [0]]  # indices of batches
NUMBERS = torch.arange(60.0).reshape(10, 2, 3)


class Doubled(TensorDataset):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return tuple(2 * tensor for tensor in super().__getitem__(index))


def samples() -> TensorDataset:
    return TensorDataset(-NUMBERS, torch.arange(10), NUMBERS[:, 0, 0] > 20)


def batches(dataset: Dataset[Any], **options: Any) -> list[Any]:
    given: dict[str, Any] = {"batch_sampler": ORDER, **options}
    return list(DataLoader(dataset, **given))


def read(dataset: Any) -> list[Any]:
    assert is_of_tensors(dataset)
    return batches(TensorRows(dataset), collate_fn=as_read)


def part(indices: Any) -> Any:
    return Subset(samples(), indices)


CASES = {
    "all": samples(),
    "a random split": random_split(samples(), [4, 6])[1],
    "a range": part(range(2, 8)),
    "indices of NumPy": part(np.array([9, 7, 5, 3])),
    "indices in a tensor": part(torch.tensor([9, 7, 5, 3])),
    "negative indices": part(range(-4, 0)),
    "windows": part([[0, 1], [1, 2], [2, 3], [3, 4]]),
    "indices of one element": part(torch.tensor([[0], [1], [2], [3]])),
    "not contiguous": TensorDataset(NUMBERS.mT, NUMBERS[:, :, ::2]),
    "channels last": TensorDataset(
        NUMBERS.reshape(10, 2, 3, 1).to(memory_format=torch.channels_last)
    ),
    "unsigned": TensorDataset(torch.arange(10).to(torch.uint16)),
    "with a gradient": TensorDataset(NUMBERS.clone().requires_grad_()),
    "a parameter": TensorDataset(torch.nn.Parameter(NUMBERS)),
}


@pytest.mark.parametrize("name", CASES)
def test_it_gives_what_the_default_collate_function_makes(name: str) -> None:
    for batch, wanted in zip(read(CASES[name]), batches(CASES[name]), strict=True):
        assert type(batch) is type(wanted)
        for mine, theirs in zip(batch, wanted, strict=True):
            assert (type(mine), mine.dtype, mine.shape) == (
                type(theirs),
                theirs.dtype,
                theirs.shape,
            )
            assert mine.stride() == theirs.stride()
            assert mine.requires_grad == theirs.requires_grad
            assert mine.detach().numpy().tobytes() == theirs.detach().numpy().tobytes()


@pytest.mark.parametrize("indices", [[0, 10, 1, 2], [0, 2.0, 1, 2]])
def test_indices_that_are_wrong_stay_so(indices: Any) -> None:
    with pytest.raises((IndexError, TypeError)):
        read(part(indices))


def test_tensors_may_be_replaced() -> None:
    data = samples()
    rows = TensorRows(data)
    data.tensors = (torch.ones(10),)
    assert rows.__getitems__([1, 2])[0].tolist() == [1, 1]


@pytest.mark.parametrize("kind", [torch.Tensor, tuple])
def test_a_collate_function_of_the_scripts_own_is_called(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    def own(batch: Any, *, collate_fn_map: Any = None) -> str:
        return f"{len(batch)} of {type(batch[0]).__name__}"

    monkeypatch.setitem(default_collate_fn_map, kind, own)
    assert read(samples()) == batches(samples())
    assert default_collate_fn_map.get(torch.Tensor) in (own, collate_tensor_fn)


def test_the_default_device_is_not_used() -> None:
    with torch.device("meta"):
        found, *_ = TensorRows(samples()).__getitems__([1])
    assert found.device.type == "cpu"


def test_data_sets_that_do_more_are_not_read_so() -> None:
    others: list[Any] = [Doubled(torch.ones(3)), Subset(Subset(samples(), [1]), [0]), [1, 2]]
    assert not any(map(is_of_tensors, others))
