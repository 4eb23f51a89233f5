"""Tensors that a loader process sends by value: the same bits, and only where they may be."""

from __future__ import annotations

import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import reduce_tensor
from torch.utils.data import DataLoader, Dataset

from edl.torch.loader import MAX_BYTES, _rebuilt, _reduced, send_small_tensors_by_value

NUMBERS = torch.arange(12.0).reshape(3, 4)


def by_value(tensor: torch.Tensor) -> bool:
    return _reduced(tensor)[0] is _rebuilt


@pytest.mark.parametrize(
    "tensor",
    [
        NUMBERS,
        NUMBERS[1:],
        torch.zeros(5, 7)[0:1, 2:4],
        NUMBERS.reshape(3, 1, 2, 2).to(memory_format=torch.channels_last),
        torch.tensor(True),
        torch.tensor(2**62),
        NUMBERS.to(torch.bfloat16),
        torch.tensor([1 + 2j, float("nan")]),
        NUMBERS.to(torch.float8_e4m3fn),
        torch.zeros(MAX_BYTES, dtype=torch.uint8),
        NUMBERS.clone().share_memory_(),
    ],
    ids=lambda tensor: f"{tensor.dtype}{[*tensor.shape]}",
)
def test_it_is_made_again_bit_by_bit(tensor: torch.Tensor) -> None:
    assert by_value(tensor)
    function, arguments = _reduced(tensor)
    made = function(*pickle.loads(pickle.dumps(arguments)))
    assert (made.dtype, made.shape, made.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert (
        bytes(made.untyped_storage())
        == tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    )
    assert made.data_ptr() % 64 == 0
    made.fill_(1)  # its memory is its own


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(MAX_BYTES + 1, dtype=torch.uint8),
        torch.zeros(0),
        NUMBERS.mT,
        NUMBERS.expand(2, 3, 4),
        NUMBERS.to_sparse(),
        NUMBERS.clone().requires_grad_(),
        torch.tensor([1 + 2j]).conj(),
        torch.zeros(3, device="meta"),
    ],
    ids=[
        "large", "empty", "transposed", "expanded", "sparse", "gradient", "conjugate", "elsewhere",
    ],
)  # fmt: skip
def test_others_are_sent_as_pytorch_does(
    tensor: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("edl.torch.loader.reduce_tensor", lambda one: seen.append(one) or "")
    _reduced(tensor)
    assert seen[0] is tensor


def test_the_default_device_is_not_used() -> None:
    function, arguments = _reduced(NUMBERS)
    with torch.device("meta"):
        assert function(*arguments).device.type == "cpu"


class Pairs(Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return torch.full((MAX_BYTES // 4,), float(index)), index


def _prepare(_number: int) -> None:
    send_small_tensors_by_value()


def test_a_loader_receives_both_kinds() -> None:
    loader = DataLoader(Pairs(), batch_size=2, num_workers=1, worker_init_fn=_prepare)
    found = list(loader)
    assert [labels.tolist() for _, labels in found] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [x[:, 0].tolist() for x, _ in found] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert [(x.is_shared(), labels.is_shared()) for x, labels in found] == 4 * [(True, False)]
    assert ForkingPickler._extra_reducers[torch.Tensor] is reduce_tensor  # in this process
