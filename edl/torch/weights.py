"""``edl.torch.load_weights``: what a job has trained, for a script that only uses it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch

from edl.checkpoint.weights import weights
from edl.errors import CheckpointError
from edl.framework.state import few
from edl.torch.capture import KIND, to_tensors


def load_weights(
    path: str | os.PathLike[str], model: torch.nn.Module | None = None, prefix: str = ""
) -> dict[str, torch.Tensor]:
    """The weights of a checkpoint, on the CPU: parameters and buffers by name. Needs no job.

    Args:
        path: a checkpoint, a directory with checkpoints (the newest good one is taken), or a file
            of ``edl checkpoint export``.
        model: gets them, on the device where it is; None: they are only returned.
        prefix: only names that begin with it, without it: `1.` for the second of several models,
            in the order of their optimizers.

    Raises:
        CheckpointError: there is no good file, or the model has other parameters or shapes.
    """
    blobs = {
        name.removeprefix(prefix): replace(blob, kind=KIND, device="cpu")
        for name, blob in weights(Path(path)).items()
        if name.startswith(prefix)
    }
    found: dict[str, torch.Tensor] = to_tensors(blobs)
    if model is not None:
        _load(model, found, path)
    return found


def _load(
    model: torch.nn.Module, found: Mapping[str, torch.Tensor], path: str | os.PathLike[str]
) -> None:
    mine = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    odd = [f"{name} is not there" for name in sorted(mine.keys() - found.keys())] or [
        f"{name} has shape {tuple(found[name].shape)} there and {tuple(tensor.shape)} here"
        for name, tensor in sorted(mine.items())
        if found[name].shape != tensor.shape
    ]
    if odd:
        raise CheckpointError(f"{path} is of another model: {few(odd)}")
    with torch.no_grad():
        for name, tensor in mine.items():
            tensor.copy_(found[name])
