"""Read and write the state of an optimizer, also of one that wraps another (Lookahead, SAM).

Wrappers are written in many ways: without ``Optimizer.__init__``, with a ``state_dict()`` that
names parameters by their addresses, or leaves out the state of the inner optimizer. So the state of
a wrapper and of each optimizer in it is read from ``state`` and ``param_groups``, and loaded into
these same dict objects, because several attributes of a wrapper may refer to one dict.
"""

from __future__ import annotations

import copy
import logging
import types
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer

from edl.binding.replica import PLAIN, map_leaves, places
from edl.checkpoint.tensors import can_hold
from edl.errors import UsageError, some

logger = logging.getLogger(__name__)


# ------------------------------------------------------------
# Use the gradients that a closure computes in `optimizer.step()`; refuse to run it twice, as LBFGS
# with several iterations does.

AGAIN = (
    "{kind} evaluates its closure more than once in a step, and edl trains one backward() in each; "
    "use an optimizer that evaluates it once, such as Adam, or torch.optim.LBFGS with max_iter=1 "
    "and no line search"
)

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def after_closure(
    arguments: tuple[Any, ...], named: dict[str, Any], then: Callable[[], None]
) -> Arguments | None:
    """Call `then` when a `step()` has its gradients; return its new arguments, if they change."""
    closure = named.get("closure", arguments[1] if len(arguments) > 1 else None)
    if closure is None:
        then()
        return None
    evaluated = False

    def once() -> Any:
        nonlocal evaluated
        if evaluated:
            raise UsageError(AGAIN.format(kind=type(arguments[0]).__name__))
        evaluated = True
        loss = closure()
        then()
        return loss

    if "closure" in named:
        return arguments, {**named, "closure": once}
    return (arguments[0], once, *arguments[2:]), named


@dataclass
class LastStep:
    """The outcome of one optimizer's last step, in the job's state for workers that missed it."""

    skipped: bool | torch.Tensor = False  # a tensor of an optimizer that decides; 0.0: not skipped
    # Of a step that others completed without this worker: it restores their result after the
    # script's `optimizer.step()`, since some optimizers change weights even without gradients.
    missed: Callable[[], None] | None = None


# ------------------------------------------------------------
# Map the names in a model's `state_dict()` to the tensors that the workers of a job share.
#
# A job shares each tensor of a model once, also buffers that are not persistent. `state_dict()` has
# a tied tensor under each of its names, leaves out these buffers, and holds what
# `get_extra_state()` of the modules returns and their state-dict hooks add. All names are those of
# the model as it is without `torch.compile`, so that a job may use it or not.

COMPILED = "_orig_mod."  # torch.compile puts the model into a module, under this name
PORTABLE = (*PLAIN, np.ndarray, np.generic, torch.Tensor)  # what workers send each other


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
    return {
        name: state
        for name, module in _with_extra_state(model)
        if _all_leaves(state := module.get_extra_state(), lambda leaf: isinstance(leaf, PORTABLE))
    }


def load_extra_states(model: torch.nn.Module, states: Mapping[str, Any]) -> None:
    for name, module in _with_extra_state(model):
        if name in states:
            module.set_extra_state(states[name])


def can_save(value: Any) -> bool:
    return _all_leaves(value, lambda leaf: isinstance(leaf, torch.Tensor) or can_hold(leaf))


def plain_name(name: str) -> str:
    """Return `name` without the prefix that `torch.compile` has put into it."""
    return name.replace(COMPILED, "")


def with_plain_names(state: Any) -> Any:
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
    found: list[bool] = []
    map_leaves(value, lambda leaf, _: found.append(test(leaf)))
    return all(found)


# ------------------------------------------------------------
# Keep gradients and optimizer states in the memory order of their parameters.
#
# PyTorch's fused optimizers go through the memory of a parameter, its gradient and its state at
# once. On a CPU they do not check that the orders are the same, and on a GPU they raise an error.
# Tensors that come from other workers or from a checkpoint are row-major, and a parameter need not
# be (`channels_last`, a transposed matrix).


def laid_out_like(
    parameter: torch.Tensor, tensor: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    if tensor.stride() == parameter.stride():
        return tensor.to(dtype)
    laid_out = torch.empty_like(parameter, dtype=dtype, device=tensor.device)
    return laid_out.copy_(tensor)


# ------------------------------------------------------------
# Share an optimizer's parameter groups and `requires_grad` flags with the job's state.
#
# A script may add a group in epoch 2,
# remove one, or freeze parameters. A newcomer that begins in epoch 5, and a job that is resumed
# there, have not run that code: they receive the groups and the flags with the job's state. The
# groups that a newcomer's script has *before its loop* must be those that the job began with, or be
# a subset of those that the job has now. Otherwise it is another script, and edl raises UsageError.

Names = list[list[str]]  # of the parameters of each group


def optimizer_parameters(
    optimizer: torch.optim.Optimizer, model: torch.nn.Module
) -> Iterator[tuple[str, torch.nn.Parameter]]:
    names = {parameter: plain_name(name) for name, parameter in model.named_parameters()}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, parameter in enumerate(parameters):
        yield names.get(parameter, f"parameter.{index}"), parameter


class ParameterGroups:
    def __init__(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
        self._optimizer, self._model = optimizer, model
        self._at_start: Names | None = None
        self._received: list[set[torch.Tensor]] = []  # groups that the script has yet to add itself

    @property
    def names(self) -> Names:
        named = optimizer_parameters(self._optimizer, self._model)
        return [[next(named)[0] for _ in each["params"]] for each in self._optimizer.param_groups]

    def begin(self) -> None:
        if self._at_start is None:
            self._at_start = self.names

    def state(self) -> dict[str, Names]:
        self.begin()
        assert self._at_start is not None
        return {"now": self.names, "at_start": self._at_start}

    def follow(self, theirs: Mapping[str, Names], options: Sequence[Mapping[str, Any]]) -> None:
        self.begin()
        assert self._at_start is not None
        wanted, mine = theirs["now"], self.names
        if mine == wanted:
            return
        is_same_script = self._at_start == theirs["at_start"]
        if not is_same_script and any(each not in wanted for each in mine):
            number, odd = next((n, each) for n, each in enumerate(mine) if each not in wanted)
            raise UsageError(
                f"parameter group {number} of this script's optimizer has {some(odd)}, and the job "
                f"has no such group: its {len(wanted)} have "
                f"{'; '.join(some(each) for each in wanted)}; make the groups as the job's script "
                "does, or start a new job"
            )
        known = {plain_name(name): one for name, one in self._model.named_parameters()}
        known |= optimizer_parameters(self._optimizer, self._model)
        if unknown := [name for group in wanted for name in group if name not in known]:
            raise UsageError(
                f"the job's optimizer trains {some(unknown)} by now, and this worker's model has "
                "no such parameters; build all modules before `for epoch in loader.epochs(n)`, "
                "those that are trained later, too, and add their parameter group in the loop"
            )
        self._rebuild([[known[name] for name in group] for group in wanted], options)

    def _rebuild(
        self, wanted: list[list[torch.nn.Parameter]], options: Sequence[Mapping[str, Any]]
    ) -> None:
        optimizer = self._optimizer
        own, groups = [*optimizer.param_groups], []
        for parameters, theirs in zip(wanted, options, strict=True):
            kept = next((one for one in own if _same(one["params"], parameters)), None)
            if kept is not None:
                groups.append(kept)
                continue
            optimizer.param_groups.clear()  # else PyTorch looks for the parameters in all of them
            group = {**theirs, "params": parameters}
            if names := group.pop("param_names", None):
                group["params"] = list(zip(names, parameters, strict=True))
            type(optimizer).add_param_group(optimizer, group)
            groups += optimizer.param_groups
            if not self._received:
                vars(optimizer)["add_param_group"] = self._add
            self._received.append(set(parameters))
        optimizer.param_groups[:] = groups  # in place: other objects may hold the list
        logger.info("the optimizer has the job's %d parameter groups now", len(groups))

    def _add(self, group: dict[str, Any]) -> None:
        given = group["params"]
        given = [given] if isinstance(given, torch.Tensor) else [*given]
        tensors = {one[1] if isinstance(one, tuple) else one for one in given}
        if tensors not in self._received:
            type(self._optimizer).add_param_group(self._optimizer, {**group, "params": given})
            return
        self._received.remove(tensors)
        logger.debug("this parameter group came with the job's state; it is not added again")
        if not self._received:
            del vars(self._optimizer)["add_param_group"]


class Flags:
    def __init__(self) -> None:
        self._at_start: dict[str, bool] = {}

    def begin(self, parameters: Mapping[str, torch.Tensor]) -> None:
        for name, parameter in parameters.items():
            self._at_start.setdefault(name, parameter.requires_grad)

    def changed(self, parameters: Mapping[str, torch.Tensor]) -> dict[str, bool]:
        self.begin(parameters)
        return {
            name: parameter.requires_grad
            for name, parameter in parameters.items()
            if parameter.requires_grad is not self._at_start[name]
        }

    def follow(self, parameters: Mapping[str, torch.Tensor], changed: Mapping[str, bool]) -> None:
        self.begin(parameters)
        for name, parameter in parameters.items():
            wanted = changed.get(name, self._at_start[name])
            if parameter.requires_grad is not wanted:
                parameter.requires_grad_(wanted)


def _same(one: Iterable[torch.Tensor], other: Iterable[torch.Tensor]) -> bool:
    return [*map(id, one)] == [*map(id, other)]


_HOOKS = [
    f"_optimizer_{call}_{when}_hooks"
    for call in ("step", "state_dict", "load_state_dict")
    for when in ("pre", "post")
]


def inner_optimizers(optimizer: Optimizer) -> dict[str, Optimizer]:
    return {name: one for name, one in vars(optimizer).items() if isinstance(one, Optimizer)}


def with_inner_optimizers(optimizer: Optimizer) -> list[Optimizer]:
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
    return (own.dtype, own.device.type) == (sent.dtype, sent.device.type)


def _write(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    parameters: list[torch.Tensor] = []
    for mine, theirs in zip(optimizer.param_groups, state["param_groups"], strict=True):
        mine.update({name: value for name, value in theirs.items() if name != "params"})
        parameters += mine["params"]
    own = getattr(optimizer, "state", {})
    for parameter in parameters:
        own.pop(parameter, None)
    for key, value in state["state"].items():
        own[parameters[key]] = value
