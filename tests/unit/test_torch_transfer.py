"""What a worker receives of a PyTorch state, and in what memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from edl.binding.replica import describe, fill, references
from edl.torch import replica
from edl.torch.replica import TorchArrays

STATE = {
    "weights": torch.arange(400_000.0),
    "bias": torch.arange(7),
    "empty": torch.empty(0, 3),
    "flag": torch.tensor([True]),
    "rate": 0.1,
}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    pieces: list[torch.Tensor] = []

    def broadcast_start(flat: torch.Tensor, root: int, name: str) -> int:
        del root, name
        flat.copy_(pieces.pop(0))
        return 0

    monkeypatch.setattr(replica, "broadcast_start", broadcast_start)
    monkeypatch.setattr(replica, "finish", lambda handle: None)
    return pieces


def bytes_of(state: dict[str, torch.Tensor], arrays: TorchArrays) -> list[torch.Tensor]:
    taken: list[torch.Tensor] = []
    described = references(describe(state, taken, arrays.refer))
    groups = replica.transfers(described)
    return [
        torch.cat([taken[one.index].reshape(-1).view(torch.uint8) for one in g]) for g in groups
    ]


@pytest.mark.parametrize("expected", ["nothing", "the same", "another shape"])
def test_a_state_is_received_whatever_was_expected(expected: str, sent: list[torch.Tensor]) -> None:
    arrays = TorchArrays()
    description = describe(STATE, [], arrays.refer)
    sent += bytes_of(STATE, arrays)
    reserved: set[int] = set()
    if expected != "nothing":
        more = {"weights": torch.zeros(500_000)} if expected == "another shape" else {}
        arrays.reserve(references(describe({**STATE, **more}, [], arrays.refer)))
        reserved = {flat.data_ptr() for each in arrays._reserved.values() for flat in each}
    found = arrays.broadcast(references(description), None, root=0, keep=True)
    state = fill(description, found, arrays.empty)
    assert state["rate"] == 0.1
    for name in ("weights", "bias", "empty", "flag"):
        assert torch.equal(state[name], STATE[name]), name
    assert (state["weights"].data_ptr() in reserved) is (expected == "the same")
    assert not arrays._reserved, "what was not used is freed"


@pytest.mark.parametrize("keep", [True, False])
def test_a_large_tensor_comes_in_broadcasts_of_a_limited_size(
    keep: bool, sent: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that has the state receives all of them in memory of that size."""
    monkeypatch.setattr(replica, "COLLECTIVE_BYTES", 500_000)
    allocated: list[int] = []
    empty = torch.empty

    def counted(*size: int, **more: Any) -> torch.Tensor:
        tensor = empty(*size, **more)
        allocated.append(tensor.numel())
        return tensor

    arrays = TorchArrays()
    description = describe(STATE, [], arrays.refer)
    for group in bytes_of(STATE, arrays):
        sent += group.split(500_000)
    assert len(sent) == 5, "1.6 MB of weights, and one group of small tensors"
    monkeypatch.setattr(torch, "empty", counted)
    found = arrays.broadcast(references(description), None, root=0, keep=keep)
    assert not sent
    if keep:
        state = fill(description, found, arrays.empty)
        assert all(torch.equal(state[name], STATE[name]) for name in ("weights", "bias", "flag"))
    else:
        assert (found, allocated) == ({}, [500_000])
