"""Take the place of ``horovod.tensorflow.keras`` and ``horovod.keras`` in an unchanged script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras

from edl.binding.api import absent
from edl.transparent import horovod_callbacks as callbacks
from edl.transparent.horovod_tensorflow import (
    Adasum,
    Average,
    Compression,
    DistributedOptimizer,
    Sum,
    allgather,
    broadcast,
    broadcast_global_variables,
    broadcast_object,
    broadcast_variables,
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    init,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from edl.transparent.horovod_tensorflow import allreduce as _allreduce


def allreduce(value: Any, name: Any = None, average: Any = None, **named: Any) -> Any:
    return _allreduce(value, average, **named)


def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: Any = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    own = {each.__name__: each for each in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**own, **(custom_objects or {})})
    DistributedOptimizer(model.optimizer, compression=compression)
    return model


__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Sum",
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]

if not TYPE_CHECKING:  # else every name would be one of this module's
    __getattr__ = absent("horovod.tensorflow.keras, as --transparent replaces it,")
