"""Compare and send the tensors of an unchanged PyTorch script.

What it gives to ``hvd.broadcast_parameters`` is compared before its training, and sent during it;
``hvd.broadcast_optimizer_state`` compares.
"""

from __future__ import annotations

import gc
import weakref
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from edl.binding import process
from edl.binding.replica import PLAIN_BYTES, ByteRange, places
from edl.errors import UsageError
from edl.torch.digest import digests, size_of
from edl.torch.gathering import exchange_objects
from edl.torch.optimizer_state import state_of
from edl.transparent.model_search import modules_with
from edl.transparent.ranks import place_of_root

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
