"""Find the modules of an unchanged PyTorch script, which edl is not given."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import torch

from edl.errors import UsageError

NO_MODEL = (
    "edl cannot find the module whose parameters the optimizer trains; give "
    "hvd.DistributedOptimizer named_parameters=model.named_parameters(), of a module that holds "
    "all of them"
)


class ModelGroup(torch.nn.ModuleList):
    """Several modules that one optimizer trains, in the order of its parameters."""


def is_training(model: torch.nn.Module) -> bool:
    """Return whether `model` is in training mode; of `ModelGroup`, whether one is."""
    if isinstance(model, ModelGroup):
        return any(one.training for one in model)
    return model.training


def model_with(optimizer: torch.optim.Optimizer, named_parameters: Any) -> torch.nn.Module:
    """Return the outermost module that has all parameters of `optimizer`, or a group of several."""
    trained = [id(each) for group in optimizer.param_groups for each in group["params"]]
    # Mostly the generator `model.named_parameters()`, which knows its module.
    frame = getattr(named_parameters, "gi_frame", None)
    given = None if frame is None else frame.f_locals.get("self")
    if isinstance(given, torch.nn.Module) and set(trained) <= _parameters(given):
        return given
    modules = _modules()
    if having := _outermost([one for one in modules if set(trained) <= _parameters(one)]):
        if len(having) > 1:
            raise UsageError(NO_MODEL)
        return having[0]
    # Such as an encoder and a decoder.
    parts = _outermost([one for one in modules if not _parameters(one).isdisjoint(trained)])
    found = [each for part in parts for each in _parameters(part).intersection(trained)]
    if sorted(found) != sorted(trained):  # some are of no module, or of several
        raise UsageError(NO_MODEL)
    first = {id(part): min(map(trained.index, _parameters(part) & set(trained))) for part in parts}
    return ModelGroup(sorted(parts, key=lambda part: first[id(part)]))


def modules_with(tensors: Iterable[torch.Tensor]) -> list[torch.nn.Module]:
    """Return the smallest module that holds all `tensors`, or the outermost ones that hold some."""
    # By memory, so that a tensor of a `state_dict()` counts as the parameter itself.
    wanted = [address for each in tensors if (address := _address(each))]
    modules = [(one, _addresses(one)) for one in _modules()]
    held = {each for each in wanted if any(each in addresses for _, addresses in modules)}
    if not held:
        return []
    if whole := [one for one, addresses in modules if held <= addresses]:
        return [min(whole, key=_size_and_names)]
    parts = _outermost([one for one, addresses in modules if not held.isdisjoint(addresses)])
    return sorted(parts, key=lambda part: min(map(wanted.index, _addresses(part) & held)))


def _size_and_names(module: torch.nn.Module) -> tuple[int, list[str]]:
    # The same on all processes, for modules that share their weights.
    return sum(1 for _ in module.modules()), sorted(module.state_dict())


def _addresses(module: torch.nn.Module) -> set[int]:
    return {_address(each) for each in chain(module.parameters(), module.buffers())}


def _address(tensor: torch.Tensor) -> int:
    """Return where `tensor` begins in memory; 0 if it has no memory of one piece."""
    if tensor.layout is not torch.strided or torch.nn.parameter.is_lazy(tensor):
        return 0
    return tensor.data_ptr()


def _parameters(module: torch.nn.Module) -> set[int]:
    return {id(each) for each in module.parameters()}


def _outermost(modules: Sequence[torch.nn.Module]) -> list[torch.nn.Module]:
    inner = {id(part) for one in modules for part in one.modules() if part is not one}
    return [one for one in modules if id(one) not in inner]


def _modules() -> list[torch.nn.Module]:
    found = [one for one in gc.get_objects() if issubclass(type(one), torch.nn.Module)]
    return [one for one in found if "_modules" in vars(one)]  # else it is not complete
