"""Define the names of ``horovod.tensorflow`` that ``edl.tensorflow`` offers to Horovod scripts.

:func:`DistributedOptimizer`, :func:`DistributedGradientTape` and :func:`broadcast_variables` are
edl's, for Keras 3. The collectives are Horovod's own, in the present ring; they fail when it
breaks, and ``elastic.run`` deals with that. A newcomer that warms up is alone in a ring of one,
whatever its ``rank()`` says.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import horovod.tensorflow as _horovod
import keras
import numpy as np
import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError
from horovod.tensorflow import (
    Adasum,
    Average,
    Compression,
    Max,
    Min,
    Product,
    Sum,
    allgather,
    allgather_object,
    allreduce,
    alltoall,
    broadcast,
    broadcast_,
    broadcast_object,
    ccl_built,
    cuda_built,
    ddl_built,
    global_process_set,
    gloo_built,
    gloo_enabled,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    join,
    local_rank_op,
    local_size_op,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank_op,
    reducescatter,
    rocm_built,
    size_op,
    start_timeline,
    stop_timeline,
)

from edl.binding.api import PROCESS_SETS
from edl.binding.process import cross_rank, cross_size, current_worker, local_size
from edl.errors import UsageError
from edl.ring.ring import ADASUM
from edl.tensorflow import training
from edl.tensorflow.batch_norm import SyncBatchNormalization
from edl.tensorflow.collectives import as_it_is
from edl.tensorflow.optimizer import JobTape
from edl.tensorflow.variables import plain

_TAPE = inspect.signature(_horovod.DistributedGradientTape)
_OPTIMIZER = inspect.signature(_horovod.DistributedOptimizer)


@_horovod._cache  # type: ignore[untyped-decorator]
def _reducer(
    name: str,
    device_dense: str,
    device_sparse: str,
    compression: Any,
    sparse_as_dense: bool,
    op: Any,
    gradient_predivide_factor: float,
    groups: Any,
    process_set: Any,
) -> Any:
    # Horovod's own sends IndexedSlices in groups with the shape of another gradient, and not with
    # gradient_predivide_factor; and it knows a variable in a group by a name that is not unique.
    factors = (1.0, 1.0)
    if op == Average:  # which is divided by the number of workers, too
        factors = (1.0 / gradient_predivide_factor, gradient_predivide_factor)
    same = {
        "device_dense": device_dense,
        "device_sparse": device_sparse,
        "compression": compression,
        "op": op,
        "process_set": process_set,
    }
    scaled = {**same, "prescale_factor": factors[0], "postscale_factor": factors[1]}

    def reduce(grads: list[Any], parts: tuple[tuple[int, ...], ...], generic: bool) -> list[Any]:
        def named(number: int) -> dict[str, Any]:
            return {"name": f"grad_{number}" if generic else None, "ignore_name_scope": generic}

        reduced = list(grads)
        with tf.name_scope(f"{name}_Allreduce"):
            for i, each in enumerate(grads):
                if isinstance(each, tf.IndexedSlices):
                    reduced[i] = _horovod._allreduce_cond(each, **same, **named(i))
                elif groups is None and each is not None:
                    reduced[i] = _horovod._allreduce_cond(each, **scaled, **named(i))
            for number, part in enumerate(parts):
                sent = [grads[i] for i in part]
                means = _horovod._grouped_allreduce_cond(sent, **scaled, **named(number))
                for i, mean in zip(part, means, strict=True):
                    reduced[i] = mean
        return reduced

    if _horovod._executing_eagerly():
        reduce = tf.function(reduce, autograph=False)

    @as_it_is
    def allreduce_grads(grads: Any, vars: Any = None, use_generic_names: bool = False) -> list[Any]:
        sent = [
            tf.convert_to_tensor(each)
            if sparse_as_dense and isinstance(each, tf.IndexedSlices)
            else each
            for each in grads
        ]
        # Not in the function above, in which a variable is another object.
        return list(reduce(sent, _parts(sent, groups, vars), use_generic_names))

    return allreduce_grads


def _parts(grads: list[Any], groups: Any, variables: Any) -> tuple[tuple[int, ...], ...]:
    """Return the indices of dense gradients by groups: a number, or references to variables."""
    if groups is None:
        return ()
    dense = [i for i, g in enumerate(grads) if not (g is None or isinstance(g, tf.IndexedSlices))]
    if isinstance(groups, int):
        found = [part.tolist() for part in np.array_split(dense, groups)]
    else:
        left = {id(variables[i]): i for i in dense}
        asked = [[id(one.deref()) for one in group] for group in groups]
        found = [[left.pop(one) for one in group if one in left] for group in asked]
        found += [[i] for i in left.values()]
    return tuple(tuple(map(int, part)) for part in found if part)


_horovod._make_cached_allreduce_grads_fn = _reducer


def DistributedOptimizer(optimizer: Any, *arguments: Any, **named: Any) -> Any:
    """Return ``optimizer`` changed to average gradients as Horovod does, for ``elastic.run``.

    Gradients of all workers count equally. (``edl.Optimizer`` weights them by their samples, and
    belongs to ``edl.Dataset``.) A Keras optimizer is changed and stays the same object: Horovod's
    own wrapper overrides methods that Keras 3 does not call, and so averages nothing. Any other
    optimizer is given to Horovod's function, and a new object is returned.

    Args:
        optimizer: an optimizer of Keras or of ``tf.compat.v1.train``.
        arguments: further arguments of Horovod's function of this name by position: ``name``,
            ``device_dense`` and so on.
        named: further arguments of Horovod's function by name. For a Keras optimizer ``op`` is
            Average or Sum, ``process_set`` is the global one and ``backward_passes_per_step`` is 1.

    Raises:
        UsageError: edl is not initialised; or, for a Keras optimizer, an argument has another value
            than these, ``gradient_predivide_factor`` is given with Sum, or the optimizer was
            wrapped before.
    """
    current_worker()
    if isinstance(optimizer, keras.optimizers.Optimizer):
        return _keras_optimizer(optimizer, *arguments, **named)
    asked = _checked(_OPTIMIZER.bind(optimizer, *arguments, **named))
    if asked.arguments.get("backward_passes_per_step", 1) > 1:
        asked.arguments["sparse_as_dense"] = True  # Horovod adds up dense ones only
    return _horovod.DistributedOptimizer(*asked.args, **asked.kwargs)


def DistributedGradientTape(gradtape: Any, *arguments: Any, **named: Any) -> Any:
    """Return a tape whose ``gradient`` returns the mean gradients over all workers.

    In a script with ``edl.Dataset`` or ``edl.Optimizer`` the tape weights the workers by their
    samples (:class:`~edl.tensorflow.optimizer.JobTape`). In a script for Horovod, without them, the
    tape is Horovod's, counts all workers equally, and its ``gradient`` accepts variables of Keras
    3, too.

    Args:
        gradtape: the ``tf.GradientTape`` that computes this worker's gradients.
        arguments: further arguments of Horovod's class by position (``device_dense`` and so on), in
            a script for Horovod.
        named: further arguments of Horovod's class by name, such as ``compression``, ``op`` or
            ``scale_local_gradients``.

    Raises:
        UsageError: the script has ``edl.Dataset`` or ``edl.Optimizer``, and further arguments were
            given; or edl is not initialised.
    """
    now = training.current()
    if now.has_optimizer or now.load is not None:
        if arguments or named:
            raise UsageError(
                "edl.DistributedGradientTape(tape) takes nothing else in a script with "
                "edl.Optimizer; compression and the like belong to scripts with an elastic state"
            )
        return JobTape(gradtape)
    return _horovod_tape(gradtape, *arguments, **named)


@as_it_is
def _checked(asked: inspect.BoundArguments) -> inspect.BoundArguments:
    if asked.arguments.get("op", Average) == Adasum:
        raise UsageError(f"op=Adasum is not there: {ADASUM}")
    if isinstance(groups := asked.arguments.get("groups"), list | tuple):
        asked.arguments["groups"] = [[plain(each) for each in group] for group in groups]
    return asked


def broadcast_variables(variables: Iterable[Any], *arguments: Any, **named: Any) -> Any:
    """Assign the values that ``variables`` have on one rank to them on all workers.

    All workers call it, with the same variables in the same order. In eager execution the call
    waits until the values are assigned.

    Args:
        variables: variables of TensorFlow or of Keras 3.
        arguments: further arguments of Horovod's function by position, with ``root_rank``, the rank
            that sends, as the first.
        named: further arguments of Horovod's function by name.

    Returns:
        What Horovod's function returns; in a graph, the operation that assigns the values.
    """
    return _horovod.broadcast_variables([plain(each) for each in variables], *arguments, **named)


def _horovod_tape(gradtape: Any, *arguments: Any, **named: Any) -> Any:
    """Return Horovod's tape around `gradtape`, changed to work with Keras 3 in an elastic job."""
    asked = _checked(_TAPE.bind(gradtape, *arguments, **named))
    # In an elastic job Horovod's tape would divide the gradients of local variables (not averaged)
    # by an integer, which TensorFlow refuses.
    scales = asked.arguments.get("scale_local_gradients", True)
    asked.arguments["scale_local_gradients"] = False
    tape = _horovod.DistributedGradientTape(*asked.args, **asked.kwargs)
    reduced, divided = tape.gradient, tape.get_local_and_global_gradients
    register = tape.register_local_source
    local: set[int] = set()

    def register_local_source(source: Any) -> None:
        register(plain(source))
        local.add(id(plain(source)))

    def gradient(target: Any, sources: Sequence[Any], *more: Any, **others: Any) -> Any:
        variables = [plain(each) for each in sources]
        return [
            _by_size(each) if scales and id(variable) in local else each
            for each, variable in zip(
                reduced(target, variables, *more, **others), variables, strict=True
            )
        ]

    tape.register_local_source, tape.gradient = register_local_source, gradient
    tape.get_local_and_global_gradients = lambda target, sources, *more, **others: divided(
        target, [plain(each) for each in sources], *more, **others
    )
    return tape


def _by_size(gradient: Any) -> Any:
    if gradient is None:
        return None
    if isinstance(gradient, tf.IndexedSlices):
        values = _by_size(gradient.values)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient / tf.cast(size_op(), gradient.dtype)


def _keras_optimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Any = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: Any = global_process_set,
    scale_local_gradients: bool = True,
    use_locking: bool = False,
) -> Any:
    del average_aggregated_gradients  # says something of more than one backward pass
    del scale_local_gradients, use_locking  # of local variables; of TensorFlow 1
    if process_set is not global_process_set:
        raise UsageError(f"hvd.DistributedOptimizer: {PROCESS_SETS}")
    if op == Adasum:
        raise UsageError(f"op=Adasum is not there: {ADASUM}")
    if op not in (Average, Sum):
        raise UsageError("hvd.DistributedOptimizer: op is hvd.Average or hvd.Sum")
    if backward_passes_per_step != 1:
        raise UsageError(
            "hvd.DistributedOptimizer: for backward_passes_per_step give the Keras optimizer "
            "gradient_accumulation_steps"
        )
    if op != Average and gradient_predivide_factor != 1.0:
        raise UsageError(
            "hvd.DistributedOptimizer: gradient_predivide_factor splits an average; leave op out"
        )
    if getattr(optimizer, "_edl_averages", False):
        raise UsageError("this optimizer was wrapped by hvd.DistributedOptimizer already")
    reduce = _horovod._make_allreduce_grads_fn(
        name or f"Distributed{type(optimizer).__name__}",
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        [[plain(each) for each in group] for group in groups]
        if isinstance(groups, list | tuple)
        else groups or num_groups or None,
        process_set=global_process_set,
    )
    apply_plainly = optimizer.apply

    def apply(grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        variables = list(
            optimizer._trainable_variables if trainable_variables is None else trainable_variables
        )
        return apply_plainly(
            list(reduce(list(grads), [plain(each) for each in variables])), variables
        )

    optimizer.apply = apply  # apply_gradients calls it, too
    optimizer._edl_averages = True
    return optimizer


_keras_optimizer.__qualname__ = "DistributedOptimizer"  # in Python's own words of an argument

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "Product",
    "Sum",
    "SyncBatchNormalization",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_",
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
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "local_rank_op",
    "local_size",
    "local_size_op",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank_op",
    "reducescatter",
    "rocm_built",
    "size_op",
    "start_timeline",
    "stop_timeline",
]
