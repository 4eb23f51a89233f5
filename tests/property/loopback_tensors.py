"""PyTorch's allreduces on a loopback ring, whose workers are threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

MEMBERS: dict[int, Any] = {}  # by thread: its place in the ring


def average_start(
    tensor: torch.Tensor, output: torch.Tensor, name: str, kind: str = "average"
) -> Any:
    member = MEMBERS[threading.get_ident()]
    return member, member.average_start(tensor.numpy().copy(), name, kind), output


def finish(flight: Any) -> torch.Tensor:
    member, handle, output = flight
    found: torch.Tensor = output.copy_(torch.from_numpy(member.average_finish(handle)))
    return found


@contextmanager
def on_loopback(module: Any) -> Iterator[None]:
    """Let ``module``, which calls Horovod's allreduces, use the loopback ring of each thread."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "average_start", average_start)
        patch.setattr(module, "finish", finish)
        yield
    MEMBERS.clear()
