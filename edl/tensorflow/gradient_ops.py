"""Reduce gradients by operations of a TensorFlow graph, one of Horovod's allreduces for each.

Each gradient is on its way while backward computes the next, as in plain Horovod. What plain
Horovod's operations cannot do needs a patch of its source (gradients-outlive-the-ring in
edl/install/patches); ``AVAILABLE`` is True if the installed Horovod has it, and without it
:func:`start_sending`, :func:`sent` and :func:`failure` raise AttributeError. With the patch, when
the ring breaks, an operation named ``edl_gradient*`` ends without an error that would end the whole
graph, and is counted here as failed (:func:`failure`); and while nothing is to be sent
(:func:`start_sending`), such an operation returns its input.

Horovod matches what the workers send by name, and knows an operation that runs eagerly by its type
alone. So Python sends through a graph of its own, under the same names: in one step, one worker may
send in its graph what another sends again after a repair.
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


@waits(WAITING)
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
    """Return the items of `tensors` whose variables have a gradient."""
    return [each for each, none in zip(tensors, bare, strict=True) if not none]


def typed(means: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
    return [
        mean if mean.dtype == gradient.dtype else tf.cast(mean, gradient.dtype)
        for mean, gradient in zip(means, gradients, strict=True)
    ]
