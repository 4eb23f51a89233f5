"""Call Horovod's TensorFlow collectives: for edl's own messages, and for gradients in a graph.

:class:`TensorFlowCollectives` runs eagerly, also in a script that builds graphs, and blocks the
calling thread: Horovod's TensorFlow binding has no handles to wait on. So the step record, which
travels while the model computes, is gathered in a thread of its own. Run eagerly, Horovod's
operations are known by their type alone, whatever name they are given: no two of a type may run at
once. So all allgathers go through this one thread, one after the other, and states are broadcast
between steps only. In a graph an operation keeps its name, so gradients are reduced there, each on
its way while backward computes the next.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import logging
import re
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError
from horovod.tensorflow import mpi_ops
from tensorflow.python.distribute import distribute_lib
from tensorflow.python.eager import context

from edl.binding import replica
from edl.binding.process import classify_error
from edl.binding.replica import Reference, broadcast_message, transfers
from edl.errors import UsageError
from edl.job.stall import FOR_GRADIENTS
from edl.ring.gloo import call_init
from edl.ring.ring import CollectiveFailed
from edl.step.record import Table
from edl.tensorflow.variables import Array, bytes_of, dtype_of, tensor_array_of
from edl.worker.activity import waits

logger = logging.getLogger(__name__)
_OPERATIONS = {"sum": hvd.Sum, "max": hvd.Max}
_ADDED = re.compile(  # what TensorFlow adds to a message, before and after it
    r"^\{\{\w+ [^}]*\}\} | \[Op:\w*\] ?(name: .*)?$"
)


def guarded(function: Any, *arguments: Any, **named: Any) -> Any:
    """Call a function of Horovod eagerly in this thread; its errors become edl's."""
    try:
        with context.eager_mode():
            return function(*arguments, **named)
    except (tf.errors.OpError, HorovodInternalError) as error:
        message = _ADDED.sub("", str(getattr(error, "message", error)))
        raise classify_error(message) from error


class TensorFlowCollectives:
    """The collectives for edl's own messages (step records, states); a `gloo.Binding` of a ring."""

    def __init__(self) -> None:
        self._rows: SimpleQueue[tuple[Table, Future[Table]]] = SimpleQueue()
        # A daemon: a program that ends must not wait for the others' rows.
        self._beside = threading.Thread(target=self._gather, name="edl-records", daemon=True)

    def init(self) -> None:
        try:
            call_init(hvd.init)
        except (HorovodInternalError, ValueError, RuntimeError) as error:
            raise CollectiveFailed(str(error)) from error
        # Horovod registers this anew at every init; one worker may see hundreds of them.
        atexit.unregister(hvd.shutdown)

    def shutdown(self) -> None:
        hvd.shutdown()

    def allgather_start(self, row: Table, name: str, same_shape: bool = False) -> Future[Table]:
        if not self._beside.is_alive():
            self._beside.start()
        rows: Future[Table] = Future()
        self._rows.put((row, rows))
        return rows

    def allgather_finish(self, handle: Future[Table]) -> Table:
        return handle.result()

    def broadcast_bytes(self, payload: bytes, root: int, name: str) -> bytes:

        def broadcast(data: bytearray, _piece: str) -> bytearray:
            received = broadcast_array(np.frombuffer(data, dtype=np.uint8), root)
            return bytearray(received.tobytes())

        return broadcast_message(payload, hvd.rank() == root, name, broadcast)

    def _gather(self) -> None:
        while True:
            row, rows = self._rows.get()
            try:
                rows.set_result(guarded(_allgather, row))
            except Exception as error:  # noqa: BLE001 - for who waits for the rows
                rows.set_exception(error)


def _allgather(row: Table) -> Table:
    rows: Table = mpi_ops.allgather(tf.convert_to_tensor(row)).numpy()
    return rows


@waits("exchanging the state with the others")
def broadcast_array(array: np.ndarray[Any, Any], root: int) -> np.ndarray[Any, Any]:
    """Return the root's array, read-only, on all workers, which send one of the same form."""
    return guarded(lambda: mpi_ops.broadcast(tf.convert_to_tensor(array), root).numpy())  # type: ignore[no-any-return]


@waits(FOR_GRADIENTS)
def allreduce_average(tensors: Sequence[Any]) -> list[Any]:
    """Return the mean over all workers of each of `tensors`; for a Horovod without edl's patch."""
    averages: dict[int, Any] = {}
    for dtype in sorted({tensor.dtype for tensor in tensors}, key=lambda dtype: dtype.name):
        group = [index for index, tensor in enumerate(tensors) if tensor.dtype == dtype]
        sent = [tensors[index] for index in group]
        received = guarded(mpi_ops._grouped_allreduce, sent, op=hvd.Average)
        averages.update(zip(group, received, strict=True))
    return [averages[index] for index in range(len(tensors))]


@waits(FOR_GRADIENTS)
def allreduce_of(array: np.ndarray[Any, Any], kind: str) -> np.ndarray[Any, Any]:

    def reduced() -> np.ndarray[Any, Any]:
        tensor = tf.convert_to_tensor(array)
        found: np.ndarray[Any, Any] = mpi_ops._allreduce(tensor, op=_OPERATIONS[kind]).numpy()
        return found

    found: np.ndarray[Any, Any] = guarded(reduced)
    return found


# ------------------------------------------------------------
# Refuse `tf.distribute` strategies, which would distribute a worker's training a second time.
#
# A strategy splits each batch over its replicas, and reads its data sets ahead of the step into
# buffers on devices. Both break the order in which batches leave an `edl.Dataset`, and a step would
# wait for a batch that was never handed out. The default strategy, that of a script which names
# none, does neither and is allowed.


def check_no_strategy(strategy: Any = None) -> None:
    """Refuse any strategy but TensorFlow's default one; None: that of the present scope."""
    strategy = tf.distribute.get_strategy() if strategy is None else strategy
    default = distribute_lib._DefaultDistributionStrategy
    if not isinstance(strategy, (default, distribute_lib._DefaultDistributionStrategyV1)):
        raise UsageError(
            f"tf.distribute.{type(strategy).__name__} distributes the training over its own "
            "replicas, and edl distributes it over the workers of the job; leave out "
            "`with strategy.scope():`, strategy.run and experimental_distribute_dataset: each "
            "worker trains on one device, which edl.local_rank() numbers"
        )


@functools.cache
def watch_strategies(kind: type) -> None:
    # Keras' `fit` distributes its data set in the scope of a strategy.
    plain = distribute_lib.StrategyBase.experimental_distribute_dataset

    @functools.wraps(plain)
    def method(self: Any, dataset: Any, options: Any = None) -> Any:
        if isinstance(dataset, kind):
            check_no_strategy(self)
        return plain(self, dataset, options)

    distribute_lib.StrategyBase.experimental_distribute_dataset = method


def turn_off_xla(model: Any) -> None:
    if model.jit_compile:
        logger.warning("jit_compile is turned off: XLA cannot compile steps with collectives")
        model.jit_compile = False


APPLIES = (
    "a tf.function with jit_compile=True applies gradients, and XLA cannot compile collectives: "
    "leave jit_compile out there, or give it to a function that only computes the loss"
)


def check_no_xla(reason: str = APPLIES) -> None:
    """Raise UsageError if the stack shows that a `tf.function(jit_compile=True)` is traced."""
    frame: Any = sys._getframe()
    while frame is not None:
        if getattr(frame.f_locals.get("self"), "_jit_compile", False) is True:
            raise UsageError(reason)
        frame = frame.f_back


# ------------------------------------------------------------
# Reduce gradients by operations of a graph, one of Horovod's allreduces for each.
#
# What plain Horovod's operations cannot do needs a patch of its source (gradients-outlive-the-ring
# in edl/install/patches), which `AVAILABLE` tells. With it, when the ring breaks, an operation
# named `edl_gradient*` ends without an error that would end the whole graph, and is counted as
# failed; and while nothing is to be sent, such an operation returns its input. Horovod matches what
# the workers send by name. So Python, too, sends through a graph, under the same names: in one
# step, one worker may send in its graph what another sends again after a repair.

# Horovod's binding knows no bfloat16; such gradients travel as float32.
WIRE_DTYPE = {tf.bfloat16: tf.float32}
_REASON_BYTES = 1000
_library = mpi_ops._basics.MPI_LIB_CTYPES
AVAILABLE = hasattr(_library, "horovod_edl_send_gradients")  # this Horovod has the patch


def on_wire(gradient: Any) -> Any:
    return tf.cast(gradient, WIRE_DTYPE.get(gradient.dtype, gradient.dtype))


def weighted(gradient: Any, weight: Any) -> Any:
    # Zeros for a weight of 0, even of an infinite gradient.
    product = gradient * tf.cast(weight, gradient.dtype)
    return tf.where(tf.equal(weight, 0), tf.zeros_like(gradient), product)


def average(sent: Any, number: int, optimizer: int = 0) -> Any:
    """Add an operation to the graph for the mean of one gradient, which is none if it fails.

    `number` of the gradient and `optimizer`, from 0, are in its name: the same on all workers.
    """
    return mpi_ops.MPI_LIB.horovod_allreduce(
        sent,
        name=f"edl_gradient{optimizer or ''}_{number}",
        reduce_op=hvd.Average,
        prescale_factor=1.0,
        postscale_factor=1.0,
        ignore_name_scope=True,  # scopes may differ where a newcomer has traced less often
        process_set_id=hvd.global_process_set.process_set_id,
    )


@waits(FOR_GRADIENTS)
def averages(sent: Sequence[Any], optimizer: int = 0) -> list[Any]:
    """Average gradients over the ring from Python, after `start_sending(True)`; ask `failure`."""
    with context.eager_mode():
        # Not by calling it: that would run operation by operation while the script has
        # tf.config.run_functions_eagerly.
        traced = _averages(optimizer).get_concrete_function(*sent)
        received: list[Any] = traced(*sent)
        return received


@functools.cache
def _averages(optimizer: int) -> Any:
    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def average_all(*sent: Any) -> list[Any]:
        return [average(each, number, optimizer) for number, each in enumerate(sent)]

    return average_all


def start_sending(sends: bool) -> None:
    """Switch whether gradient operations send their inputs; begin `sent` and `failure` anew."""
    _library.horovod_edl_send_gradients(ctypes.c_bool(sends))


def sent() -> int:
    """Return how many have begun to send since `start_sending`, with those that failed."""
    return int(_library.horovod_edl_sent_gradients())


def failure() -> str | None:
    """Return why the last gradient that failed since `start_sending` was not reduced, if any."""
    reason = ctypes.create_string_buffer(_REASON_BYTES)
    if not _library.horovod_edl_failed_gradients(reason, ctypes.c_size_t(_REASON_BYTES)):
        return None
    return reason.value.decode(errors="replace") or "Horovod gave no reason"


def hold() -> None:
    """Let the graph's gradient operations send nothing until edl lets them, in the next ring."""
    if AVAILABLE:
        start_sending(False)


def empty(variable: Any) -> Any:
    """Return zeros to send for a `variable` without gradient: all workers send as many tensors."""
    # One dimension more: if another worker has a gradient for it, Horovod refuses both.
    rank = tf.TensorShape(variable.shape).rank or 0
    return tf.zeros((1,) * (rank + 1), tf.as_dtype(variable.dtype))


def having(tensors: Sequence[Any], bare: Sequence[bool]) -> list[Any]:
    return [each for each, none in zip(tensors, bare, strict=True) if not none]


def typed(means: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
    return [
        mean if mean.dtype == gradient.dtype else tf.cast(mean, gradient.dtype)
        for mean, gradient in zip(means, gradients, strict=True)
    ]


# Run eagerly, broadcasts follow one another, and each takes some of Horovod's cycles (measured: a
# state of 32 MB took 0.28 s to reach a newcomer, and in 120 pieces of 256 KiB 0.71 s).
LARGE_BYTES = 2**25


class TensorFlowArrays:
    def refer(self, value: Any, index: int) -> tuple[Array, Reference] | None:
        array = tensor_array_of(value)
        if array is None:  # it is pickled with the rest of the state
            return None
        return array, Reference(index, array.shape, array.dtype.name, array.nbytes)

    def empty(self, reference: Reference) -> Array:
        return np.empty(reference.shape, dtype_of(reference.dtype))

    def broadcast(
        self, sent: list[Reference], arrays: list[Array] | None, root: int, keep: bool
    ) -> dict[int, Array]:
        received: dict[int, Array] = {}
        for piece in transfers(sent, LARGE_BYTES):
            if arrays is not None:
                parts = [bytes_of(arrays[reference.index]) for reference in piece]
                flat = parts[0] if len(parts) == 1 else np.concatenate(parts)
            else:
                flat = np.empty(sum(reference.size for reference in piece), np.uint8)
            flat = broadcast_array(flat, root)
            start = 0
            for reference in piece if keep else ():
                stop = start + reference.size
                own = flat[start:stop].copy()  # a view must be aligned to its type
                received[reference.index] = own.view(dtype_of(reference.dtype)).reshape(
                    reference.shape
                )
                start = stop
        return received


exchange = functools.partial(replica.exchange_state, TensorFlowArrays())


Function = TypeVar("Function", bound=Callable[..., Any])


def as_it_is(function: Function) -> Function:
    # A translation by AutoGraph takes processor time at the start of each worker, and changes
    # nothing in a function without a branch or a loop over tensors.
    marked: Function = tf.autograph.experimental.do_not_convert(function)
    return marked
