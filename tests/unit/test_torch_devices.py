"""A worker takes the GPU of its slot, or says that its host has too few."""

from __future__ import annotations

import pytest
import torch

from edl.binding import process
from edl.errors import UsageError
from edl.torch.collectives import gpu_of_slot


def test_the_gpu_is_that_of_the_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(process, "local_rank", lambda: 1)
    assert gpu_of_slot() == torch.device("cuda", 1)
    monkeypatch.setattr(process, "local_rank", lambda: 2)
    with pytest.raises(UsageError, match=r"slot 2 of its host, which has 2 GPUs, .* --slots 2"):
        gpu_of_slot()


def test_workers_do_not_share_the_only_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(process, "local_rank", lambda: 0)
    assert gpu_of_slot() == torch.device("cuda", 0)
    monkeypatch.setattr(process, "local_rank", lambda: 1)
    with pytest.raises(UsageError, match=r"slot 1 of its host, which has 1 GPU, .* --slots 1 "):
        gpu_of_slot()
