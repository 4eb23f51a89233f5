"""Compare and send the tensors of an unchanged PyTorch script.

What it gives to ``hvd.broadcast_parameters`` is compared before its training, and sent during it;
``hvd.broadcast_optimizer_state`` compares.
"""

from __future__ import annotations

import gc
import weakref
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch

from edl.binding import process
from edl.binding.replica import PLAIN_BYTES, ByteRange, places
from edl.errors import UsageError
from edl.torch.digest import digests, size_of
from edl.torch.gathering import exchange_objects
from edl.torch.optimizer_state import state_of
from edl.transparent.ranks import place_of_root

# ------------------------------------------------------------
# Find the modules of an unchanged PyTorch script, which edl is not given.


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


Exchange = Callable[[bytes], list[bytes]]

ALL_CALL = "all workers must make the same calls of hvd in the same order"

OTHER_FORM = (
    "hvd.broadcast_parameters: this worker has other tensors than rank {root} ({names}), by name "
    "or shape; all workers must give it the same model"
)

OTHER_OPTIMIZER = (
    "hvd.broadcast_optimizer_state: the workers' optimizers have different states, and with "
    "--transparent it sends none; load an optimizer's state during the training on all workers, "
    "not only on rank 0"
)


class BroadcastModules:
    """The modules that a script has given to `hvd.broadcast_parameters` before its training."""

    def __init__(self) -> None:
        self._modules: list[weakref.ref[torch.nn.Module]] = []

    def add(self, tensors: Iterable[torch.Tensor]) -> None:
        known = {id(one) for one in self._alive()}
        found = [one for one in modules_with(tensors) if id(one) not in known]
        self._modules += map(weakref.ref, found)

    def digest(self) -> int:
        """Return the CRC-32 of the states of the added modules that the script still has."""
        gc.collect()  # else a module in a cycle of references exists for longer on some workers
        return _digest(
            {
                f"{number} {name}": each
                for number, one in enumerate(self._alive())
                for name, each in comparable_tensors(one.state_dict().items()).items()
            }
        )

    def _alive(self) -> list[torch.nn.Module]:
        return [one for each in self._modules if (one := each()) is not None]


def comparable_tensors(named: Iterable[tuple[str, Any]]) -> dict[str, torch.Tensor]:
    """Return the tensors among the values of `named`, without sparse and quantized ones."""
    tensors = {name: each for name, each in named if isinstance(each, torch.Tensor)}
    return {
        name: each
        for name, each in tensors.items()
        if each.layout is torch.strided and not (each.is_quantized or each.is_meta)
    }


def broadcast_tensors(
    tensors: Mapping[str, torch.Tensor], root_rank: int, exchange: Exchange
) -> None:
    """Overwrite `tensors` by those of the process `root_rank`, if they differ on any process."""
    if _are_alike(tensors, exchange):
        return
    sent = None
    while sent is None:  # if the root dies, the next process with its number is the root
        is_root = process.rank() == place_of_root(root_rank, process.num_processes())
        own = _copies(tensors) if is_root else None
        found = exchange_objects("hvd.broadcast_parameters", own, ALL_CALL, exchange)
        sent = found[place_of_root(root_rank, len(found))]
    shapes, theirs = ({name: each.shape for name, each in one.items()} for one in (tensors, sent))
    if odd := sorted({name for name, _ in shapes.items() ^ theirs.items()}):
        raise UsageError(OTHER_FORM.format(root=root_rank, names=", ".join(odd)))
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(sent[name])


def check_same_optimizer(optimizer: torch.optim.Optimizer, exchange: Exchange) -> None:
    # Without the options of its groups, such as the learning rate.
    values = {name: inside[key] for name, inside, key in places(state_of(optimizer)["state"])}
    if not _are_alike(values, exchange):
        raise UsageError(OTHER_OPTIMIZER)


def _copies(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    # Each in memory of its own, since all of a tensor's memory is sent.
    return {name: each.detach().cpu().clone() for name, each in tensors.items()}


def _are_alike(values: Mapping[str, Any], exchange: Exchange) -> bool:
    return len(set(exchange(str(_digest(values)).encode()))) == 1


def _digest(values: Mapping[str, Any]) -> int:
    found = digests(
        ByteRange(name, one, 0, size_of(one) or PLAIN_BYTES, True) for name, one in values.items()
    )
    return zlib.crc32(repr(sorted(found.items())).encode())
