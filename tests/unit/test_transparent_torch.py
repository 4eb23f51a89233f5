"""The functions of Horovod that an unchanged PyTorch script gets."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from edl.errors import UsageError
from edl.transparent import data_loading


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
    """It is the fourth argument where there is no ``compression``."""
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
