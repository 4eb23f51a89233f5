"""Treat the buffers of models that a state may lack, and those that PyTorch cannot write to.

A buffer that is registered with ``persistent=False`` is usually something that the model computes,
such as an attention mask: it may be made, or enlarged, in a forward pass. PyTorch neither saves nor
loads it. Between workers it is sent like any other tensor, and loaded where it fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from edl.torch.names import plain_name

State = Mapping[str, torch.Tensor]


def non_persistent(model: torch.nn.Module) -> set[str]:
    """Return the names of the buffers of `model` that are not in its `state_dict()`."""
    return {
        plain_name(f"{prefix}{'.' if prefix else ''}{name}")
        for prefix, module in model.named_modules()
        for name in module._non_persistent_buffers_set
    }


def fitting(mine: State, theirs: State, optional: Iterable[str]) -> list[str]:
    """Return the names of the tensors of this script into which a state can be loaded."""
    free = set(optional)
    return [
        name
        for name, tensor in mine.items()
        if name not in free or (name in theirs and theirs[name].shape == tensor.shape)
    ]


def without(tensors: State, optional: Iterable[str]) -> dict[str, torch.Tensor]:
    free = set(optional)
    return {name: tensor for name, tensor in tensors.items() if name not in free}


def overwrite(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Copy `value` into `tensor`, which has the same shape, also if `expand()` has made it."""
    strides = tensor.stride() if tensor.layout is torch.strided else tensor.shape
    shape = zip(tensor.shape, strides, strict=True)
    expanded = [size > 1 and step == 0 for size, step in shape]
    if any(expanded):  # PyTorch refuses to write to elements that share memory
        first = tuple(slice(1) if repeats else slice(None) for repeats in expanded)
        tensor, value = tensor[first], value[first]
    tensor.copy_(value)
