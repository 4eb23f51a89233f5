"""Map the names in a model's ``state_dict()`` to the tensors that the workers of a job share.

:func:`state_dict_names` does it. A job shares each tensor of a model once, also buffers that are
not persistent. ``state_dict()`` has a tied tensor under each of its names and leaves out buffers
that are not persistent. It also holds what ``get_extra_state()`` of the modules returns
(:func:`extra_states`), and values that their state-dict hooks add. All names are those of the model
as it is without ``torch.compile`` (:func:`plain_name`), so that a job may use it or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from edl.checkpoint.state_tree import can_hold
from edl.framework.digest import PLAIN
from edl.framework.state import map_leaves

COMPILED = "_orig_mod."  # torch.compile puts the model into a module, under this name
_PORTABLE = (*PLAIN, np.ndarray, np.generic, torch.Tensor)


def state_dict_names(model: torch.nn.Module) -> tuple[dict[str, str], dict[str, Any]]:
    """Map the names in `state_dict()` to its tensors' own names; return other values, too."""
    known = {id(tensor): plain_name(name) for name, tensor in model.named_buffers()}
    known |= {id(tensor): plain_name(name) for name, tensor in model.named_parameters()}
    names, besides = {}, {}
    for full_name, value in model.state_dict(keep_vars=True).items():
        name = plain_name(full_name)
        if id(value) in known:
            names[name] = known[id(value)]
        elif can_save(value):
            besides[name] = value.detach() if isinstance(value, torch.Tensor) else value
    return names, besides


def extra_states(model: torch.nn.Module) -> dict[str, Any]:
    """Return what `get_extra_state()` of the modules of `model` returns, by the module's name."""
    return {
        name: state
        for name, module in _with_extra_state(model)
        if is_portable(state := module.get_extra_state())
    }


def load_extra_states(model: torch.nn.Module, states: Mapping[str, Any]) -> None:
    for name, module in _with_extra_state(model):
        if name in states:
            module.set_extra_state(states[name])


def is_portable(value: Any) -> bool:
    """Return whether `value` has only parts that workers send each other."""
    return _all_leaves(value, lambda leaf: isinstance(leaf, _PORTABLE))


def can_save(value: Any) -> bool:
    """Return whether `value` has only parts that a checkpoint file can hold."""
    return _all_leaves(value, lambda leaf: isinstance(leaf, torch.Tensor) or can_hold(leaf))


def plain_name(name: str) -> str:
    """Return `name` without the prefix that `torch.compile` has put into it."""
    return name.replace(COMPILED, "")


def with_plain_names(state: Any) -> Any:
    """Return nested dicts and lists with plain names in place of all texts, keys and values."""
    # An earlier edl has written the names of a compiled model into its checkpoints.
    if isinstance(state, str):
        return plain_name(state)
    if isinstance(state, dict):
        return {with_plain_names(key): with_plain_names(value) for key, value in state.items()}
    if isinstance(state, list):
        return [with_plain_names(value) for value in state]
    return state


def _with_extra_state(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    base = torch.nn.Module.get_extra_state
    modules = ((plain_name(name), one) for name, one in model.named_modules())
    return ((name, one) for name, one in modules if type(one).get_extra_state is not base)


def _all_leaves(value: Any, test: Callable[[Any], bool]) -> bool:
    """Return whether `test` is true for everything in the containers `value`."""
    odd: list[Any] = []

    def note(leaf: Any, _where: str) -> None:
        if not test(leaf):
            odd.append(leaf)

    map_leaves(value, note)
    return not odd
