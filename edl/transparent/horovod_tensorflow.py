"""Take the place of ``horovod.tensorflow`` in an unchanged script: the same names, on edl.

``size()`` is the number of logical workers, and never changes; ``rank()`` is the number of the
process, so ``rank() == 0`` is true on one process, which writes the script's files. A collective is
one of the processes.
"""

from __future__ import annotations

import functools
import inspect
import pickle
import sys
from typing import TYPE_CHECKING, Any

import horovod.tensorflow as _horovod
import numpy as np
import tensorflow as tf
from horovod.tensorflow import (
    Adasum,
    Average,
    Compression,
    Max,
    Min,
    Product,
    Sum,
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
from horovod.tensorflow import DistributedGradientTape as _DistributedGradientTape
from horovod.tensorflow import DistributedOptimizer as _DistributedOptimizer
from keras.utils import set_random_seed

import edl.tensorflow
from edl.binding import process
from edl.binding.api import absent
from edl.binding.process import cross_rank, cross_size, is_initialized, local_size, shutdown
from edl.errors import UsageError
from edl.tensorflow.collectives import as_it_is
from edl.tensorflow.replica import last_seed
from edl.transparent.script import (
    Ranks,
    check_collective,
    check_has_ranks,
    check_reduction,
    place_of_root,
)
from edl.transparent.script import ranks as size
from edl.transparent.tensorflow_loop import TapeLoop, record_pipelines, replace_fit, script

loop = TapeLoop(script.pipelines, script.exchanges)
shown = Ranks(
    lambda: script.exchanges.has_trained,
    lambda: loop.passes_over or process.current_worker().fits.passes_over,
    lambda: bool(tf.config.list_physical_devices("GPU")),
)
_SIGNATURE = inspect.signature(_DistributedOptimizer)
_TAPE_SIGNATURE = inspect.signature(_DistributedGradientTape)
PASSES = (
    "backward_passes_per_step above 1 is not there with --transparent: give the Keras optimizer "
    "gradient_accumulation_steps, the data set larger batches, or the job more ranks (--logical)"
)
IN_GRAPH = (
    "hvd.{name} is called in a tf.function, where a process that joins later could not take part; "
    "with --transparent call it outside, on the function's result"
)
IN_LOOP = (
    "hvd.{name} is called in the loop over the training data, through which a process goes once "
    "for each of its ranks, and so more often than others; with --transparent call it after the "
    "loop, which takes batches until the data set ends, or print the value of one rank"
)
LOOP = (
    "hvd.DistributedGradientTape is used outside of a loop over the batches of a tf.data.Dataset; "
    "with --transparent the loop goes over a data set of tf.data.Dataset.from_tensor_slices((x, y))"
    ".shuffle(...).batch(n), or the script trains by model.fit"
)


def init(*_: Any, **__: Any) -> None:
    edl.tensorflow.init()
    check_has_ranks()
    shown.show_newcomer()
    if not last_seed():  # the same random numbers on all processes and in each run
        set_random_seed(0)


def rank() -> int:
    """Return the number of this process; not 0 while it passes over epochs: it writes no files."""
    loop.check_not_left_early()
    return shown.rank()


def local_rank() -> int:
    """Return the number of this process on its host, or of its GPU; `== 0` tells the first one."""
    loop.check_not_left_early()
    return shown.local_rank()


def DistributedOptimizer(optimizer: Any, *arguments: Any, **named: Any) -> Any:
    asked = _SIGNATURE.bind(optimizer, *arguments, **named).arguments
    check_reduction(asked, _horovod, PASSES)
    return edl.tensorflow.Optimizer(optimizer)


def DistributedGradientTape(gradtape: Any, *arguments: Any, **named: Any) -> Any:
    asked = _TAPE_SIGNATURE.bind(gradtape, *arguments, **named).arguments
    check_reduction(asked, _horovod, PASSES)
    if not loop.is_within:
        raise UsageError(LOOP)
    return edl.tensorflow.DistributedGradientTape(gradtape)


@as_it_is
def broadcast_variables(variables: Any, root_rank: int, *_: Any, **__: Any) -> None:
    """Do nothing: when training begins, all processes have the variables of the job."""


def broadcast_global_variables(root_rank: int) -> None:
    """Do nothing: when training begins, all processes have the variables of the job."""


def _exchange(payload: bytes, name: str) -> list[bytes]:
    if not tf.executing_eagerly():
        raise UsageError(IN_GRAPH.format(name=name))
    if loop.has_batch:
        raise UsageError(IN_LOOP.format(name=name))
    return script.exchanges.now(payload)


def _arrays(value: Any, name: str, process_set: Any) -> list[Any]:
    check_collective(process_set, None, _horovod)
    own = np.asarray(value)
    return [pickle.loads(each) for each in _exchange(pickle.dumps(own), name)]


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = None,
    op: Any = None,
    **named: Any,
) -> Any:
    check_collective(None, op, _horovod)
    found = _arrays(tensor, "allreduce", named.get("process_set", global_process_set))
    if len({one.shape for one in found}) > 1:
        raise UsageError(f"hvd.allreduce: shapes differ: {[one.shape for one in found]}")
    scaled = np.stack(found) * np.asarray(named.get("prescale_factor", 1.0))
    kinds: dict[Any, Any] = {Sum: np.sum, Min: np.min, Max: np.max, Product: np.prod}
    result = kinds.get(Sum if average is False else op, np.mean)(scaled, axis=0)
    result = result * np.asarray(named.get("postscale_factor", 1.0))
    return tf.convert_to_tensor(np.asarray(result).astype(found[0].dtype))


def grouped_allreduce(tensors: Any, *arguments: Any, **named: Any) -> list[Any]:
    return [allreduce(each, *arguments, **named) for each in tensors]


def allgather(tensor: Any, name: Any = None, process_set: Any = global_process_set) -> Any:
    found = _arrays(tensor, "allgather", process_set)
    return tf.concat([np.atleast_1d(each) for each in found], axis=0)


def broadcast(
    tensor: Any, root_rank: int, name: Any = None, process_set: Any = global_process_set
) -> Any:
    found = _arrays(tensor, "broadcast", process_set)
    return tf.convert_to_tensor(found[place_of_root(root_rank, len(found))])


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    session: Any = None,
    name: Any = None,
    process_set: Any = global_process_set,
) -> Any:
    found = allgather_object(obj, process_set=process_set)
    return found[place_of_root(root_rank, len(found))]


def allgather_object(
    obj: Any, session: Any = None, name: Any = None, process_set: Any = global_process_set
) -> list[Any]:
    check_collective(process_set, None, _horovod)
    return [pickle.loads(each) for each in _exchange(pickle.dumps(obj), "allgather_object")]


def join() -> int:
    return len(allgather_object(None)) - 1


def _iterating(plain: Any) -> Any:
    @functools.wraps(plain)
    def iterate(self: Any) -> Any:
        reader = str(sys._getframe(1).f_globals.get("__name__")).partition(".")[0]
        is_own = reader not in ("keras", "tensorflow")  # not an evaluation
        if is_own and tf.executing_eagerly() and loop.is_training(self):
            shown.begin_epoch()
            return loop.batches(self)
        return plain(self)

    return iterate


def _install() -> None:
    kind: Any = tf.data.Dataset
    kind.__iter__ = _iterating(kind.__iter__)
    kind.edl_numbers_steps = property(loop.is_training)
    kind.edl_step_in_epoch = property(lambda _: loop.step_in_epoch)


_install()
record_pipelines()
replace_fit()

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allreduce",
    "init",
    "is_initialized",
    "join",
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
    __getattr__ = absent("horovod.tensorflow, as --transparent replaces it,")
