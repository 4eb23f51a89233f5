"""The state of an optimizer as it travels, also of one that wraps another one (Lookahead, SAM).

Wrappers are written in many ways: without ``Optimizer.__init__``, with a ``state_dict()`` that
names parameters by their addresses, or that leaves out what the inner one has. So theirs is not
asked for: the state of the wrapper and of each optimizer within it is read, and written in place,
for wrappers hold the same dicts under several names.
"""

from __future__ import annotations

import types
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

_HOOKS = (
    "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
)


def inner_optimizers(optimizer: Optimizer) -> dict[str, Optimizer]:
    """The optimizers that ``optimizer`` wraps, by the names of its attributes."""
    return {name: one for name, one in vars(optimizer).items() if isinstance(one, Optimizer)}


def is_sharpness_aware(optimizer: Optimizer) -> bool:
    """Whether it is of SAM's kind, which wants two backward passes for an update.

    ``first_step()`` moves the weights by the gradients of the first, ``second_step()`` moves them
    back and lets the inner optimizer make the update by those of the second.
    """
    return all(callable(getattr(optimizer, name, None)) for name in ("first_step", "second_step"))


def stepping(optimizer: Optimizer) -> Optimizer:
    """The optimizer whose ``step()`` makes the update: of SAM's kind the inner one."""
    within = [*inner_optimizers(optimizer).values()] if is_sharpness_aware(optimizer) else []
    return within[0] if within else optimizer


def complete(optimizer: Optimizer) -> None:
    """Give an optimizer whose class has not called ``Optimizer.__init__`` what that makes."""
    own = vars(optimizer)
    if _HOOKS[0] in own:
        return
    for name in _HOOKS:
        own.setdefault(name, OrderedDict())
    inner = next(iter(inner_optimizers(optimizer).values()), None)
    own.setdefault("defaults", {} if inner is None else inner.defaults)
    kind = type(optimizer)
    own.setdefault("_zero_grad_profile_name", f"Optimizer.zero_grad#{kind.__name__}.zero_grad")
    if not getattr(kind.step, "hooked", False):
        hooked: Any = Optimizer.profile_hook_step(kind.step)
        optimizer.step = types.MethodType(hooked, optimizer)  # type: ignore[method-assign]


def state_of(optimizer: Optimizer) -> dict[str, Any]:
    """Its ``state_dict()``; of a wrapper, the same of it and of what is in it."""
    inner = inner_optimizers(optimizer)
    if not inner:
        return _state_dict(optimizer)
    numbers: dict[Any, int] = {}
    groups = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            numbers.setdefault(parameter, len(numbers))
        groups.append({**group, "params": [numbers[each] for each in group["params"]]})
    state = getattr(optimizer, "state", {})
    return {
        "state": {numbers[key]: value for key, value in state.items() if key in numbers},
        "param_groups": groups,
        "inner": {name: state_of(one) for name, one in inner.items()},
        "attributes": {n: v for n, v in vars(optimizer).items() if type(v) in (bool, int, float)},
    }


def load_state(optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Take over what :func:`state_of` has said of an optimizer with the same groups.

    Raises:
        ValueError: it is of another kind of optimizer.
    """
    inner = inner_optimizers(optimizer)
    if not inner:
        optimizer.load_state_dict(state)
        return
    theirs = state.get("inner", {})
    if inner.keys() != theirs.keys():
        raise ValueError("the state is of an optimizer that does not wrap the same ones")
    _write(optimizer, state)
    for name, one in inner.items():
        _write(one, theirs[name])
    vars(optimizer).update(state["attributes"])


def with_own_options(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """``state`` with the options of this ``optimizer``: learning rates and their like.

    What a wrapper counts in its groups is no option.
    """
    inner = inner_optimizers(optimizer)
    if not inner:
        return {**state, "param_groups": state_of(optimizer)["param_groups"]}
    options = {"initial_lr", *optimizer.defaults}.union(*(one.defaults for one in inner.values()))

    def mixed(groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        return [
            {**theirs, **{name: mine[name] for name in options & mine.keys()}}
            for theirs, mine in zip(groups, optimizer.param_groups, strict=True)
        ]

    within = {
        name: {**one, "param_groups": mixed(one["param_groups"])}
        for name, one in state["inner"].items()
    }
    return {**state, "param_groups": mixed(state["param_groups"]), "inner": within}


def named_state(state: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """``state`` with the names of the parameters in the place of their numbers."""
    named = {
        names[key] if isinstance(key, int) else str(key): value
        for key, value in state["state"].items()
    }
    within = {name: named_state(one, names) for name, one in state.get("inner", {}).items()}
    return {
        **named,
        "param_groups": state["param_groups"],
        **within,
        **({"attributes": state["attributes"]} if "attributes" in state else {}),
    }


def _state_dict(optimizer: Optimizer) -> dict[str, Any]:
    """Its ``state_dict()``, also when a script has removed a group whose parameters had a state."""
    listed = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    held = optimizer.state
    kept = {k: v for k, v in held.items() if not isinstance(k, torch.Tensor) or k in listed}
    if len(kept) == len(held):
        return optimizer.state_dict()
    optimizer.state = defaultdict(dict, kept)
    try:
        return optimizer.state_dict()
    finally:
        optimizer.state = held


def _write(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Put ``state`` into the dicts that the optimizer has."""
    parameters: list[torch.Tensor] = []
    for mine, theirs in zip(optimizer.param_groups, state["param_groups"], strict=True):
        mine.update({name: value for name, value in theirs.items() if name != "params"})
        parameters += mine["params"]
    own = getattr(optimizer, "state", {})
    for parameter in parameters:
        own.pop(parameter, None)
    for key, value in state["state"].items():
        own[parameters[key]] = value
