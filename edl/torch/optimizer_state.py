"""Read and write the state of an optimizer, also of one that wraps another (Lookahead, SAM).

:func:`state_of` reads a state, :func:`load_state` writes it. Wrappers are written in many ways:
without ``Optimizer.__init__``, with a ``state_dict()`` that names parameters by their addresses, or
one that leaves out the state of the inner optimizer. So a wrapper's own ``state_dict()`` is not
called: the state of the wrapper and of each optimizer in it is read from ``state`` and
``param_groups``. A loaded state is written into these same dict objects, because several attributes
of a wrapper may refer to one dict.
"""

from __future__ import annotations

import copy
import types
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from edl.framework.digest import places
from edl.framework.state import map_leaves
from edl.torch.layout import laid_out_like

_HOOKS = (
    "_optimizer_step_pre_hooks",
    "_optimizer_step_post_hooks",
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
)


def inner_optimizers(optimizer: Optimizer) -> dict[str, Optimizer]:
    """Return the optimizers that `optimizer` wraps, by the names of the attributes with them."""
    return {name: one for name, one in vars(optimizer).items() if isinstance(one, Optimizer)}


def with_inner_optimizers(optimizer: Optimizer) -> list[Optimizer]:
    """Return `optimizer` and all optimizers inside of it: those it wraps, and those in these."""
    found = [optimizer]
    for one in found:  # which grows
        known = {id(each) for each in found}
        found += [each for each in inner_optimizers(one).values() if id(each) not in known]
    return found


def is_sharpness_aware(optimizer: Optimizer) -> bool:
    """Return whether `optimizer` is of SAM's kind, with two backward passes for an update."""
    return all(callable(getattr(optimizer, name, None)) for name in ("first_step", "second_step"))


def stepping(optimizer: Optimizer) -> Optimizer:
    """Return the optimizer whose `step()` makes the update: SAM's is the first that it wraps."""
    within = [*inner_optimizers(optimizer).values()] if is_sharpness_aware(optimizer) else []
    return within[0] if within else optimizer


def complete(optimizer: Optimizer) -> None:
    """Add the attributes that PyTorch's `Optimizer.__init__` sets, if they are missing."""
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
    """Return the `state_dict()` of `optimizer`; for a wrapper, also of the optimizers in it."""
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


def load_state(optimizer: Optimizer, state: dict[str, Any], exact: bool = True) -> None:
    """Load a state into `optimizer`; it may share the tensors of `state` afterwards."""
    inner = inner_optimizers(optimizer)
    if not inner:
        optimizer.load_state_dict(state)
        if exact:  # not if dtypes or devices of the parameters differ from the sender's
            _put_back_converted(optimizer, state)
        lay_out_state(optimizer)
        return
    theirs = state.get("inner", {})
    if inner.keys() != theirs.keys():
        raise ValueError("the state is of an optimizer that does not wrap the same ones")
    _write(optimizer, state)
    for name, one in inner.items():
        _write(one, theirs[name])
        lay_out_state(one)
    lay_out_state(optimizer)
    vars(optimizer).update(state["attributes"])


def lay_out_state(optimizer: Optimizer) -> None:
    """Give each tensor with the shape of its parameter that parameter's order in memory."""
    for parameter, held in getattr(optimizer, "state", {}).items():
        if not isinstance(parameter, torch.Tensor) or not isinstance(held, dict):
            continue
        for _, where, key in places(held):
            own = where[key]
            if isinstance(where, tuple) or not isinstance(own, torch.Tensor):
                continue
            if own.shape == parameter.shape and own.layout is torch.strided:
                where[key] = laid_out_like(parameter, own, own.dtype)


def with_own_options(
    optimizer: Optimizer, state: dict[str, Any], computed: Collection[str] = ()
) -> dict[str, Any]:
    """Return a state with the options of its groups, such as `lr`, replaced by the optimizer's."""
    inner = inner_optimizers(optimizer)
    if not inner:
        own, sent = state_of(optimizer)["param_groups"], state["param_groups"]
        if [each["params"] for each in own] == [each["params"] for each in sent]:
            own = [
                {**mine, **{name: theirs[name] for name in theirs.keys() & computed}}
                for mine, theirs in zip(own, sent, strict=True)
            ]
        return {**state, "param_groups": own}
    options = {"initial_lr", *optimizer.defaults}.union(*(one.defaults for one in inner.values()))
    options -= {*computed}

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


def keeps_tensors(optimizer: Optimizer) -> bool:
    """Return whether a `step()` without gradients changes no weights, nor tensors of the state."""
    return type(optimizer).__module__.startswith("torch.optim.")  # others may decay a momentum


def copied_for_step(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of `state` that a `step()` without gradients does not change."""
    if not keeps_tensors(optimizer):
        return copy.deepcopy(state)
    shared: dict[str, Any] = map_leaves(state, lambda value, _: value)
    return shared


def named_state(state: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return an optimizer's state by parameter names, so that workers can compare their states."""
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
    """Return the `state_dict()` of `optimizer`, without states of parameters in no group."""
    listed = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    held = optimizer.state
    kept = {k: v for k, v in held.items() if not isinstance(k, torch.Tensor) or k in listed}
    if len(kept) == len(held):
        return optimizer.state_dict()
    # PyTorch's own raises a KeyError once a group was removed whose parameters had a state.
    optimizer.state = defaultdict(dict, kept)
    try:
        return optimizer.state_dict()
    finally:
        optimizer.state = held


def _put_back_converted(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Put back the tensors of `state` whose dtype or type of device has changed in the load."""
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        sent = {name: where[key] for name, where, key in places(state["state"].get(number, {}))}
        for name, where, key in places(optimizer.state.get(parameter, {})):
            own, theirs = where[key], sent.get(name)
            if isinstance(where, tuple) or not isinstance(own, torch.Tensor):
                continue
            # NAdam's `mu_product` and ASGD's `eta` and `mu` are float32, whatever the parameter is.
            if isinstance(theirs, torch.Tensor) and not same_kind(own, theirs):
                where[key] = theirs


def same_kind(own: torch.Tensor, sent: torch.Tensor) -> bool:
    """Return whether two tensors have the same dtype and are on devices of the same type."""
    return (own.dtype, own.device.type) == (sent.dtype, sent.device.type)


def _write(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Write `state` into `param_groups` and `state` of an optimizer, in place."""
    parameters: list[torch.Tensor] = []
    for mine, theirs in zip(optimizer.param_groups, state["param_groups"], strict=True):
        mine.update({name: value for name, value in theirs.items() if name != "params"})
        parameters += mine["params"]
    own = getattr(optimizer, "state", {})
    for parameter in parameters:
        own.pop(parameter, None)
    for key, value in state["state"].items():
        own[parameters[key]] = value
