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
import re
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
from tensorflow.python.eager import context

from edl.binding.api import call_init
from edl.binding.reduction import broadcast_message, classify_error
from edl.core.job.stall import FOR_GRADIENTS
from edl.ring.ring import CollectiveFailed
from edl.step.record import Table
from edl.worker.activity import waits

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
        """Initialise Horovod, which connects this worker to the ring that the environment names."""
        try:
            call_init(hvd.init)
        except (HorovodInternalError, ValueError, RuntimeError) as error:
            raise CollectiveFailed(str(error)) from error
        # Horovod registers this anew at every init; one worker may see hundreds of them.
        atexit.unregister(hvd.shutdown)

    def shutdown(self) -> None:
        hvd.shutdown()

    def allgather_start(self, row: Table, name: str, same_shape: bool = False) -> Future[Table]:
        """Start to gather the tables of all workers; return a future of one table of all rows."""
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
