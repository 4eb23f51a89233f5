"""Copy PyTorch state into host memory for a checkpoint, and turn such copies into tensors again.

A :class:`Copier` makes the copies, and :func:`to_tensors` turns them into tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from edl.checkpoint.safetensors import Blob
from edl.errors import CheckpointError
from edl.framework.state import few, map_leaves

KIND = "torch"


class Copier:
    """A copier of model state into host memory; each copy overwrites the tensors of the last."""

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = []
        self._used = 0
        self._gpus: set[torch.device] = set()  # that copies were started on

    def copy(self, state: Any) -> Any:
        """Copy a state, with each tensor replaced by a `Blob` with a copy of its bytes."""
        self._used = 0
        self._gpus.clear()
        copied = map_leaves(state, self._leaf)
        del self._buffers[self._used :]  # of a larger part of the state
        for gpu in self._gpus:  # a script may train on another one than the current device
            torch.cuda.synchronize(gpu)
        return copied

    def _leaf(self, value: Any, where: str) -> Any:
        if isinstance(value, np.ndarray):
            return value.copy()
        if not isinstance(value, torch.Tensor):
            return value
        if value.layout is not torch.strided or value.is_quantized or value.is_meta:
            raise CheckpointError(f"{where} is a {value.layout} tensor, which is not supported")
        source = value.detach()
        copy = self._buffers[self._used] if self._used < len(self._buffers) else None
        if copy is None or copy.shape != source.shape or copy.dtype != source.dtype:
            copy = torch.empty(
                source.shape, dtype=source.dtype, device="cpu", pin_memory=source.is_cuda
            )
            self._buffers[self._used : self._used + 1] = [copy]
        self._used += 1
        copy.copy_(source, non_blocking=source.is_cuda)
        if source.is_cuda:
            self._gpus.add(source.device)
        data = copy.reshape(-1).view(torch.uint8).numpy().data
        dtype = str(copy.dtype).removeprefix("torch.")
        return Blob(KIND, dtype, tuple(copy.shape), data, source.device.type)


def to_tensors(state: Any, *, copy: bool = False) -> Any:
    """Return nested dicts, lists and tuples like `state`, with tensors in place of Blobs."""
    return map_leaves(state, partial(_tensor, copy=copy))


def _tensor(value: Any, where: str, copy: bool) -> Any:
    if not isinstance(value, Blob):
        return value
    dtype = getattr(torch, value.dtype, None)
    if value.kind != KIND or not isinstance(dtype, torch.dtype):
        raise CheckpointError(
            f"{where} is a {value.kind} array of {value.dtype}, which this PyTorch does not know"
        )
    if value.data.nbytes:
        flat = torch.frombuffer(value.data, dtype=torch.uint8).view(dtype)
    else:
        flat = torch.empty(0, dtype=dtype, device="cpu")
    there = value.device if value.device != "cuda" or torch.cuda.is_available() else "cpu"
    return flat.reshape(value.shape).to(there, copy=copy)  # else it may share the Blob's memory


def check_model(mine: Mapping[str, torch.Tensor], theirs: Mapping[str, torch.Tensor]) -> None:
    """Check that the tensors of a checkpoint have the names and shapes of this script's model."""
    if lacking := sorted(theirs.keys() - mine.keys()):
        raise CheckpointError(
            f"the checkpoint is of another model: only it has {few(lacking)}; a script that adds "
            "modules in its loop must build them before it to be resumed"
        )
    if odd := sorted(mine.keys() - theirs.keys()):
        raise CheckpointError(
            f"the checkpoint is of another model: only this script's has {few(odd)}"
        )
    shapes = [
        f"{name} has shape {tuple(theirs[name].shape)} there and {tuple(mine[name].shape)} here"
        for name in sorted(mine)
        if mine[name].shape != theirs[name].shape
    ]
    if shapes:
        raise CheckpointError(f"the checkpoint is of another model: {few(shapes)}")
