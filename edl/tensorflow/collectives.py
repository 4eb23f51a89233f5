"""Run Horovod's TensorFlow collectives as :class:`edl.ring.ring.Collectives`.

Everything here runs eagerly, also in a script that builds graphs, and blocks the calling thread.
Horovod's TensorFlow binding has no handles to wait on, as its PyTorch binding has. So the step
record, which travels while the model computes, is gathered in a thread of its own.

Run eagerly, Horovod's operations are known by their type alone, whatever name they are given: no
two of a type may run at once. So all allgathers (step records, barriers, exchanges) go through this
one thread, one after the other, and states are broadcast between steps only. Gradients are reduced
in graphs, where an operation keeps its name (:mod:`edl.tensorflow.gradient_ops`); only with a
Horovod without edl's patch are they reduced here, eagerly, by :func:`allreduce_average`, and with
logical workers by :func:`allreduce_of`.
"""

from __future__ import annotations

import atexit
import functools
import logging
import re
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError
from horovod.tensorflow import mpi_ops
from tensorflow.python.distribute import distribute_lib
from tensorflow.python.eager import context

from edl.binding.api import call_init
from edl.binding.reduction import broadcast_message, classify_error
from edl.errors import UsageError
from edl.job.stall import FOR_GRADIENTS
from edl.ring.ring import CollectiveFailed
from edl.step.record import Table
from edl.worker.activity import waits

logger = logging.getLogger(__name__)


WAITING = FOR_GRADIENTS

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


@waits(WAITING)
def allreduce_average(tensors: Sequence[Any]) -> list[Any]:
    """Return the mean over all workers of each of `tensors`; for a Horovod without edl's patch."""
    averages: dict[int, Any] = {}
    for dtype in sorted({tensor.dtype for tensor in tensors}, key=lambda dtype: dtype.name):
        group = [index for index, tensor in enumerate(tensors) if tensor.dtype == dtype]
        sent = [tensors[index] for index in group]
        received = guarded(mpi_ops._grouped_allreduce, sent, op=hvd.Average)
        averages.update(zip(group, received, strict=True))
    return [averages[index] for index in range(len(tensors))]


@waits(WAITING)
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


def refuse_strategy(strategy: Any = None) -> None:
    """Refuse any strategy but TensorFlow's default one; None: that of the present scope."""
    strategy = tf.distribute.get_strategy() if strategy is None else strategy
    if not _is_default(strategy):
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
            refuse_strategy(self)
        return plain(self, dataset, options)

    distribute_lib.StrategyBase.experimental_distribute_dataset = method


def _is_default(strategy: Any) -> bool:
    kinds = (
        distribute_lib._DefaultDistributionStrategy,
        distribute_lib._DefaultDistributionStrategyV1,
    )
    return isinstance(strategy, kinds)


# ------------------------------------------------------------
# Keep XLA away from steps with collectives, which XLA cannot compile.


def turn_off_xla(model: Any) -> None:
    if model.jit_compile:
        logger.warning("jit_compile is turned off: XLA cannot compile steps with collectives")
        model.jit_compile = False


APPLIES = (
    "a tf.function with jit_compile=True applies gradients, and XLA cannot compile collectives: "
    "leave jit_compile out there, or give it to a function that only computes the loss"
)


def refuse_xla(why: str = APPLIES) -> None:
    """Raise UsageError if the stack shows that a `tf.function(jit_compile=True)` is traced."""
    frame: Any = sys._getframe()
    while frame is not None:
        if getattr(frame.f_locals.get("self"), "_jit_compile", False) is True:
            raise UsageError(why)
        frame = frame.f_back
