"""Take the place of ``horovod.torch`` in an unchanged script: the same names, on edl.

``size()`` is the number of logical workers, and never changes; ``rank()`` is the number of the
process, so ``rank() == 0`` is true on one process, which writes the script's files. A collective is
one of the processes, in a loop each with the batch of one of its ranks.
"""

from __future__ import annotations

import inspect
from typing import Any

import horovod.torch as _horovod
import torch
from horovod.torch import (
    Adasum,
    Average,
    Compression,
    HorovodInternalError,
    Max,
    Min,
    Product,
    Sum,
    SyncBatchNorm,
    ccl_built,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rocm_built,
    start_timeline,
    stop_timeline,
)
from horovod.torch import DistributedOptimizer as _DistributedOptimizer

import edl.torch
from edl.binding import process
from edl.binding.process import cross_rank, cross_size, is_initialized, local_size, shutdown
from edl.errors import UsageError
from edl.torch.api import exchange_objects, reduce_as_horovod, reduced, tensors_of_all
from edl.transparent import data_loading
from edl.transparent.data_loading import ALL_CALL, loaders, model_with, shown
from edl.transparent.script import check_collective, check_has_ranks, check_reduction, place_of_root
from edl.transparent.script import ranks as size
from edl.transparent.training import refuse_gradient

_SIGNATURE = inspect.signature(_DistributedOptimizer)
_UNCOMPRESSED = inspect.signature(_horovod.allreduce_)  # and of the asynchronous functions
_KINDS = {Average: "mean", Sum: "sum", Min: "min", Max: "max", Product: "product"}
ELASTIC = (
    "--transparent is for scripts of plain Horovod; a script with hvd.elastic needs one changed "
    "import, and no --transparent (docs/guides/horovod-scripts.md)"
)
NOT_THERE = (
    "hvd.{name} is not there with --transparent, because the number of processes changes while the "
    "script trains; docs/guides/unchanged-scripts.md says what is"
)
NO_BATCH = (
    "optimizer.step() is called for data that edl cannot divide among processes that come and go: "
    "with --transparent take each training batch, once, from a DataLoader with "
    "sampler=DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank()), while the "
    "model is in training mode"
)


def init(*_: Any, **__: Any) -> None:
    edl.torch.init()
    check_has_ranks()
    shown.show_newcomer()


def rank() -> int:
    """Return the number of this process; not 0 while it passes over epochs: it writes no files."""
    loaders.check_not_left_early()
    return shown.rank()


def local_rank() -> int:
    """Return the number of this process on its host, or of its GPU; `== 0` tells the first one."""
    loaders.check_not_left_early()
    return shown.local_rank()


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer, *arguments: Any, **named: Any
) -> torch.optim.Optimizer:
    asked = _SIGNATURE.bind(optimizer, *arguments, **named).arguments
    check_reduction(asked, _horovod)
    loaders.model = model_with(optimizer, asked.get("named_parameters"))
    optimizer.register_step_pre_hook(_check_has_batch)
    listed = [each for group in optimizer.param_groups for each in group["params"]]
    required = [each for each in listed if each.requires_grad]
    loaders.optimizer = edl.torch.Optimizer(
        optimizer,
        loaders.model,
        backward_passes_per_step=asked.get("backward_passes_per_step", 1),
    )
    # As in Horovod, zeros stand for the gradient that no rank has computed in a step: weight decay
    # and momentum change the parameter.
    reduce_as_horovod(required if size() > 1 else ())
    return loaders.optimizer


def _check_has_batch(*_: Any) -> None:
    """Raise a UsageError if the optimizer makes an update by a batch that edl does not know."""
    if not process.current_worker().loader.open:
        raise UsageError(NO_BATCH)
    loaders.note_step()


def broadcast_parameters(params: Any, root_rank: int, *_: Any, **__: Any) -> None:
    named = params.items() if hasattr(params, "items") else params
    loaders.broadcast_parameters(named, root_rank)


def broadcast_optimizer_state(optimizer: Any, root_rank: int, *_: Any, **__: Any) -> None:
    """Check that `optimizer` has the same state on all processes, once the training has begun."""
    loaders.compare_optimizer(optimizer)


def _tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    exchange = loaders.exchange()  # None: this process takes no part
    return [tensor.detach().clone()] if exchange is None else tensors_of_all(tensor, exchange)


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = global_process_set,
) -> torch.Tensor:
    check_collective(process_set, op, _horovod)
    if op is None:
        op = Sum if average is False else Average
    scaled = tensor if prescale_factor == 1.0 else tensor * prescale_factor
    result = reduced(_tensors(scaled), _KINDS[op])
    if op == Average and result.dtype != tensor.dtype:
        result = result.to(tensor.dtype)  # Horovod's mean of integers is one
    result = refuse_gradient("allreduce", scaled, result)
    return result if postscale_factor == 1.0 else result * postscale_factor


def allreduce_(tensor: torch.Tensor, *arguments: Any, **named: Any) -> torch.Tensor:
    asked = _UNCOMPRESSED.bind(tensor, *arguments, **named).arguments
    with torch.no_grad():
        return tensor.copy_(allreduce(**asked))


def grouped_allreduce(
    tensors: list[torch.Tensor], *arguments: Any, **named: Any
) -> list[torch.Tensor]:
    return [allreduce(each, *arguments, **named) for each in tensors]


def grouped_allreduce_(
    tensors: list[torch.Tensor], *arguments: Any, **named: Any
) -> list[torch.Tensor]:
    return [allreduce_(each, *arguments, **named) for each in tensors]


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: Any = global_process_set
) -> torch.Tensor:
    check_collective(process_set, None, _horovod)
    rows = [each.reshape(-1) if each.dim() == 0 else each for each in _tensors(tensor)]
    return refuse_gradient("allgather", tensor, torch.cat(rows))


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: Any = global_process_set,
) -> torch.Tensor:
    check_collective(process_set, None, _horovod)
    tensors = _tensors(tensor)
    result = tensors[place_of_root(root_rank, len(tensors))].to(tensor.device)
    return refuse_gradient("broadcast", tensor, result)


def broadcast_(tensor: torch.Tensor, root_rank: int, *arguments: Any, **named: Any) -> torch.Tensor:
    with torch.no_grad():
        return tensor.copy_(broadcast(tensor, root_rank, *arguments, **named))


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str | None = None, process_set: Any = global_process_set
) -> Any:
    found = allgather_object(obj, name, process_set)
    return found[place_of_root(root_rank, len(found))]


def allgather_object(
    obj: Any, name: str | None = None, process_set: Any = global_process_set
) -> list[Any]:
    check_collective(process_set, None, _horovod)
    exchange = loaders.exchange()
    if exchange is None:
        return [obj]
    return exchange_objects("hvd.allgather_object", obj, ALL_CALL, exchange)


def barrier(process_set: Any = global_process_set) -> None:
    allgather_object(None, process_set=process_set)


def join(device: int = -1) -> int:
    barrier()  # enough: all ranks have equally many batches
    return process.num_processes() - 1


_results: dict[int, Any] = {}  # of asynchronous calls, until synchronize()


def _handle(result: Any) -> int:
    number = 1 + max(_results, default=0)
    _results[number] = result
    return number


def synchronize(handle: int) -> Any:
    return _results.pop(handle, None)


def poll(handle: int) -> bool:
    """Return True: the collective of any `handle` is complete when the call returns."""
    return True


@torch.no_grad()
def allreduce_async(*arguments: Any, **named: Any) -> int:
    return _handle(allreduce(**_UNCOMPRESSED.bind(*arguments, **named).arguments))


def allreduce_async_(*arguments: Any, **named: Any) -> int:
    return _handle(allreduce_(*arguments, **named))


@torch.no_grad()
def allgather_async(*arguments: Any, **named: Any) -> int:
    return _handle(allgather(*arguments, **named))


@torch.no_grad()
def broadcast_async(*arguments: Any, **named: Any) -> int:
    return _handle(broadcast(*arguments, **named))


def broadcast_async_(*arguments: Any, **named: Any) -> int:
    return _handle(broadcast_(*arguments, **named))


data_loading.replace_loading()

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "Product",
    "Sum",
    "SyncBatchNorm",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allreduce",
    "grouped_allreduce_",
    "init",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]


def __getattr__(name: str) -> Any:
    if name == "elastic":
        raise UsageError(ELASTIC)
    if name.startswith("__") or not hasattr(_horovod, name):
        raise AttributeError(f"module 'horovod.torch' has no attribute {name!r}")
    raise UsageError(NOT_THERE.format(name=name))
