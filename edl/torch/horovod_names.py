"""Re-export the names of ``horovod.torch`` in ``edl.torch``, for scripts written for Horovod.

:func:`DistributedOptimizer` wraps Horovod's, and ``rank()``, ``size()`` and the like are edl's. The
collectives are Horovod's own and use the current ring; when it breaks, they raise
HorovodInternalError, and ``elastic.run`` goes on from the last commit in a new ring. A newcomer
that warms up is alone in a ring of one worker, although its ``rank()`` is then never 0.
"""

from __future__ import annotations

import inspect
from typing import Any, cast

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
    allgather,
    allgather_async,
    allgather_object,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
    ccl_built,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    grouped_allgather,
    grouped_allgather_async,
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter,
    grouped_reducescatter_async,
    join,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    poll,
    reducescatter,
    reducescatter_async,
    rocm_built,
    sparse_allreduce_async,
    start_timeline,
    stop_timeline,
    synchronize,
)
from horovod.torch import DistributedOptimizer as _DistributedOptimizer

from edl.binding.elastic import warmed_up
from edl.binding.process import cross_rank, cross_size, current_worker, local_size
from edl.errors import UsageError
from edl.job.stall import FOR_COLLECTIVE
from edl.ring.ring import ADASUM
from edl.worker.activity import waits

_SIGNATURE = inspect.signature(_DistributedOptimizer)

for _function in (synchronize, barrier, join):
    waits(FOR_COLLECTIVE)(_function)


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer, *arguments: Any, **named: Any
) -> torch.optim.Optimizer:
    """Wrap ``optimizer`` as Horovod's distributed optimizer, for a script with ``elastic.run``.

    The gradients of all workers count equally, as in Horovod. (``edl.Optimizer`` weights them by
    their samples, and belongs to ``edl.DataLoader``.) When a newcomer has made one update in its
    warm-up, the next one raises HostsUpdatedInterrupt, by which ``elastic.run`` ends the warm-up.

    Args:
        optimizer: the optimizer to wrap.
        arguments: the positional arguments of Horovod's ``DistributedOptimizer`` after the first.
        named: the keyword arguments of Horovod's ``DistributedOptimizer``.

    Returns:
        The wrapped optimizer.

    Raises:
        UsageError: ``op=Adasum``; or edl is not initialised.
    """
    worker = current_worker()
    asked = _SIGNATURE.bind(optimizer, *arguments, **named).arguments
    if asked.get("op") == Adasum:
        raise UsageError(f"op=Adasum is not there: {ADASUM}")
    distributed: Any = _DistributedOptimizer(optimizer, *arguments, **named)
    plainly = distributed.synchronize

    def synchronize() -> None:  # once for each update: by step(), or by the script before it
        warmed_up(worker)
        plainly()
        worker.script.beat()

    distributed.synchronize = synchronize
    return cast(torch.optim.Optimizer, distributed)


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
    "alltoall",
    "alltoall_async",
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
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "join",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "rocm_built",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]
