"""What ``state_dict()`` of a model calls its tensors, and what else it holds.

A job shares each tensor of a model once, buffers that are not persistent too. ``state_dict()`` has
a tied tensor under each of its names, leaves out such buffers, and has what ``get_extra_state()``
of a module gives, and whatever its hooks add.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from edl.framework.digest import PLAIN
from edl.framework.state import map_leaves

COMPILED = "_orig_mod."  # torch.compile puts the model into a module, under this name
_PORTABLE = (*PLAIN, np.ndarray, np.generic, torch.Tensor)


def state_dict_names(model: torch.nn.Module) -> tuple[dict[str, str], dict[str, Any]]:
    """The names in ``state_dict()``.

    Returns:
        The name in ``named_parameters()`` or ``named_buffers()`` of each tensor of the model, by
        its name in ``state_dict()``; and what is in there besides, if a file can hold it.
    """
    known = {id(tensor): name for name, tensor in model.named_buffers()}
    known |= {id(tensor): name for name, tensor in model.named_parameters()}
    names, besides = {}, {}
    for name, value in model.state_dict(keep_vars=True).items():
        if id(value) in known:
            names[name] = known[id(value)]
        elif is_portable(value):
            besides[name] = value.detach() if isinstance(value, torch.Tensor) else value
    return names, besides


def extra_states(model: torch.nn.Module) -> dict[str, Any]:
    """What ``get_extra_state()`` of its modules gives, by the names of the modules."""
    return {
        name: state
        for name, module in _with_extra_state(model)
        if is_portable(state := module.get_extra_state())
    }


def load_extra_states(model: torch.nn.Module, states: Mapping[str, Any]) -> None:
    """Give the modules what :func:`extra_states` has found."""
    for name, module in _with_extra_state(model):
        if name in states:
            module.set_extra_state(states[name])


def is_portable(value: Any) -> bool:
    """Whether it is made of numbers, text, bytes and arrays, in dicts, lists and tuples."""
    odd: list[Any] = []
    map_leaves(value, lambda leaf, _: None if isinstance(leaf, _PORTABLE) else odd.append(leaf))
    return not odd


def plain_name(name: str) -> str:
    """The name of a tensor in the model that ``torch.compile`` was given, if it was."""
    return name.replace(COMPILED, "")


def _with_extra_state(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    base = torch.nn.Module.get_extra_state
    return ((n, one) for n, one in model.named_modules() if type(one).get_extra_state is not base)
