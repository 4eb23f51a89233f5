"""Define ``edl.tensorflow.keras``, which takes the place of ``horovod.tensorflow.keras``.

A Keras script changes ``import horovod.tensorflow.keras as hvd`` into
``import edl.tensorflow.keras as hvd``. ``hvd.DistributedOptimizer`` averages the gradients,
``hvd.callbacks`` has Horovod's callbacks, and ``hvd.elastic`` lets workers join and leave. A name
of Horovod's that edl does not offer raises UsageError with advice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edl.binding.api import absent
from edl.binding.process import (
    cross_rank,
    cross_size,
    is_initialized,
    is_warming_up,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
)
from edl.tensorflow.api import init
from edl.tensorflow.horovod_names import (
    Average,
    Compression,
    DistributedOptimizer,
    Sum,
    allgather,
    allreduce,
    broadcast,
    broadcast_object,
    broadcast_variables,
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
    reducescatter,
    rocm_built,
    start_timeline,
    stop_timeline,
)
from edl.tensorflow.keras import callbacks, elastic

__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Sum",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "elastic",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_initialized",
    "is_warming_up",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "reducescatter",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]

if not TYPE_CHECKING:  # else every name would be one of this module's
    __getattr__ = absent(__name__)
