"""The functions of Horovod that an unchanged PyTorch script gets."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from edl.errors import UsageError
from edl.transparent import data_loading, training


@pytest.fixture
def hvd(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module of a process whose partner has sent 3."""
    with monkeypatch.context() as patch:
        patch.setattr(data_loading, "replace_loading", lambda: None)
        from edl.transparent import horovod_torch
    monkeypatch.setattr(horovod_torch, "_tensors", lambda own: [own.detach(), 3 * own.detach()])
    return horovod_torch


def one() -> torch.Tensor:
    return torch.tensor([1.0])


def test_op_has_its_place_of_horovods_functions(hvd: ModuleType) -> None:
    none = hvd.Compression.none
    assert hvd.allreduce_(one(), None, "x", hvd.Sum).tolist() == [4.0]
    assert hvd.synchronize(hvd.allreduce_async(one(), None, "x", hvd.Sum)).tolist() == [4.0]
    assert hvd.synchronize(hvd.allreduce_async_(one(), None, "x", hvd.Sum)).tolist() == [4.0]
    (first,) = hvd.grouped_allreduce_([one()], None, "x", hvd.Sum, 2.0)
    assert first.tolist() == [8.0]
    assert hvd.allreduce(one(), None, "x", none, hvd.Sum).tolist() == [4.0]
    assert hvd.grouped_allreduce([one()], None, "x", none, hvd.Sum)[0].tolist() == [4.0]
    assert hvd.synchronize(hvd.allreduce_async(tensor=one(), op=hvd.Max)).tolist() == [3.0]
    with pytest.raises(UsageError, match="op=Adasum"):
        hvd.allreduce_(one(), None, "x", hvd.Adasum)


COLLECTIVES = {
    "allreduce": lambda hvd, own: hvd.allreduce(own, postscale_factor=2.0),
    "grouped_allreduce": lambda hvd, own: hvd.grouped_allreduce([own])[0],
    "allgather": lambda hvd, own: hvd.allgather(own),
    "broadcast": lambda hvd, own: hvd.broadcast(own, 0),
}


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_gradient_through_a_collective_is_refused(
    hvd: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would depend on the number of processes; the value is there for metrics."""
    monkeypatch.setattr(training, "ranks", lambda: 2)
    weight = torch.ones(1, requires_grad=True)
    result = COLLECTIVES[name](hvd, weight * one()).sum()
    assert result.item() in (4.0, 2.0, 1.0)
    (2 * weight + result.detach()).sum().backward()
    assert weight.grad is not None
    assert weight.grad.item() == 2.0
    with pytest.raises(UsageError, match=rf"a loss with the result of hvd\.{name[-9:]}"):
        (2 * weight + result).sum().backward()
    with torch.no_grad():
        assert not COLLECTIVES[name](hvd, weight * one()).requires_grad


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_gradient_through_a_collective_of_one_rank_is_its_own(
    hvd: ModuleType, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "ranks", lambda: 1)
    monkeypatch.setattr(hvd, "_tensors", lambda own: [own.detach().clone()])
    weight = torch.tensor(5.0, requires_grad=True)
    COLLECTIVES[name](hvd, 3 * weight).sum().backward()
    assert weight.grad is not None
    assert weight.grad.item() == (6.0 if name == "allreduce" else 3.0)


def test_asynchronous_collectives_have_no_gradient(hvd: ModuleType) -> None:
    weight = torch.ones(1, requires_grad=True)
    handles = [hvd.allreduce_async(weight), hvd.allgather_async(weight)]
    handles.append(hvd.broadcast_async(weight, 0))
    assert not any(hvd.synchronize(each).requires_grad for each in handles)
