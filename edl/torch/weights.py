"""Provide ``edl.torch.load_weights``, which loads the trained weights from a job's checkpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from edl.binding.replica import few, map_leaves
from edl.checkpoint.location import location
from edl.checkpoint.safetensors import Blob
from edl.checkpoint.weights import weights
from edl.errors import CheckpointError
from edl.torch.optimizer_state import plain_name
from edl.torch.replica import KIND, to_tensors

EXTRA = "_extra_state"  # the last part of the name of what get_extra_state() gives


def load_weights(
    path: str | os.PathLike[str], model: torch.nn.Module | None = None, prefix: str = ""
) -> dict[str, torch.Tensor]:
    """Return the weights in a checkpoint, on the CPU, by the names that ``state_dict()`` has.

    It needs no job and no ``edl.init()``.

    Args:
        path: a checkpoint, a directory with checkpoints (the newest undamaged one is taken), or a
            file of ``edl checkpoint export``.
        model: a model into which the weights are loaded, on the device where it is; None: the
            weights are only returned.
        prefix: load only names that begin with it, and remove it from them: ``1.`` is for the
            second of several models, in the order of their optimizers. Empty: load all.

    Raises:
        CheckpointError: there is no undamaged file, or the model has other names or shapes; the
            model is then unchanged.
    """
    blobs = {
        name.removeprefix(prefix): map_leaves(value, lambda leaf, _: _on_cpu(leaf))
        for name, value in weights(location(path)).items()
        if name.startswith(prefix)
    }
    found: dict[str, torch.Tensor] = to_tensors(blobs)
    if model is not None:
        _load(model, found, path)
    return found


def _on_cpu(leaf: Any) -> Any:
    return replace(leaf, kind=KIND, device="cpu") if isinstance(leaf, Blob) else leaf


def _load(
    model: torch.nn.Module, found: Mapping[str, torch.Tensor], path: str | os.PathLike[str]
) -> None:
    mine = model.state_dict(keep_vars=True)
    theirs = {plain_name(name): value for name, value in found.items()}
    firsts: dict[int, str] = {}  # by id of a tensor: a name of it in the file
    for name, value in mine.items():
        if plain_name(name) in theirs:
            firsts.setdefault(id(value), plain_name(name))
    wanted = {name: firsts.get(id(value), plain_name(name)) for name, value in mine.items()}
    wanted |= {name: plain for name in mine if (plain := plain_name(name)) in theirs}
    passed_over = {plain_name(name) for name, _ in model.named_buffers()}  # in an older checkpoint
    extra = {name for name in theirs if name.endswith(EXTRA)}
    odd = (
        [f"{name} is not there" for name in sorted(mine) if wanted[name] not in theirs]
        or [
            f"{name} has shape {tuple(theirs[wanted[name]].shape)} there and "
            f"{tuple(value.shape)} here"
            for name, value in sorted(mine.items())
            if isinstance(value, torch.Tensor) and theirs[wanted[name]].shape != value.shape
        ]
        or [
            f"only it has {name}"
            for name in sorted(theirs.keys() - {*wanted.values()} - passed_over - extra)
        ]
    )
    if odd:
        raise CheckpointError(f"{path} is of another model: {few(odd)}")
    model.load_state_dict({name: theirs[wanted[name]] for name in mine})
