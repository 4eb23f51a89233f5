"""Horovod's allreduce as an operation of a graph, one a gradient.

So each gradient is on its way while backward computes the next, as in plain Horovod. What plain
Horovod's operations cannot do needs a patch of its source (gradients-outlive-the-ring in
edl/install/patches): when the ring breaks, an operation named ``edl_gradient*`` ends without an
error that would end the whole graph, and is counted here as failed; and while nothing is to be
sent it hands on what it got.

Horovod matches what the workers send by name, and knows an operation that runs eagerly by its type
alone. So Python sends through a graph of its own (:func:`averages`), under the same names: in one
step, one worker may send in its graph what another sends again after a repair.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf
from horovod.tensorflow import mpi_ops
from tensorflow.python.eager import context

from edl.tensorflow.collectives import WAITING
from edl.worker.activity import waits

# Horovod's binding knows no bfloat16; such gradients travel as float32.
WIRE_DTYPE = {tf.bfloat16: tf.float32}
_REASON_BYTES = 1000
_library = mpi_ops._basics.MPI_LIB_CTYPES

AVAILABLE = hasattr(_library, "horovod_edl_send_gradients")  # this Horovod has the patch


def on_wire(gradient: Any) -> Any:
    """The gradient in a type that Horovod's binding knows."""
    return tf.cast(gradient, WIRE_DTYPE.get(gradient.dtype, gradient.dtype))


def weighted(gradient: Any, weight: Any) -> Any:
    """``gradient`` times ``weight``, a scalar float64 tensor; zeros if that is 0, for inf too."""
    product = gradient * tf.cast(weight, gradient.dtype)
    return tf.where(tf.equal(weight, 0), tf.zeros_like(gradient), product)


def average(sent: Any, number: int, optimizer: int = 0) -> Any:
    """The mean over the ring of the gradient ``number``, as an operation of the graph.

    ``optimizer``: whose it is; each has names of its own.
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


@waits(WAITING)
def averages(sent: Sequence[Any], optimizer: int = 0) -> list[Any]:
    """The means over the ring, from Python; all are under way at once.

    Traced once for tensors of these shapes and types.
    """
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


def send(sends: bool) -> None:
    """From now on the graph's gradients are sent, or handed on. Counts begin anew."""
    _library.horovod_edl_send_gradients(ctypes.c_bool(sends))


def sent() -> int:
    """How many gradients the graph has sent since."""
    return int(_library.horovod_edl_sent_gradients())


def failure() -> str | None:
    """Why gradients could not be reduced since; None: all were."""
    reason = ctypes.create_string_buffer(_REASON_BYTES)
    if not _library.horovod_edl_failed_gradients(reason, ctypes.c_size_t(_REASON_BYTES)):
        return None
    return reason.value.decode(errors="replace") or "Horovod gave no reason"
