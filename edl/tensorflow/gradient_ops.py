"""Horovod's allreduce as a part of the user's graph, one operation a gradient.

So each gradient is on its way while backward computes the next, as in plain Horovod. What plain
Horovod's operations cannot do needs an edit of its source ("gradients-outlive-the-ring" in
:mod:`edl.install.horovod_edits`): when the ring breaks, an operation named ``edl_gradient*`` ends
without an error that would end the whole graph, and is counted here as failed; and while nothing
is to be sent it hands on what it got.
"""

from __future__ import annotations

import ctypes
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf
from horovod.tensorflow import mpi_ops

from edl.tensorflow.collectives import WIRE_DTYPE

_REASON_BYTES = 1000
_library = mpi_ops._basics.MPI_LIB_CTYPES

AVAILABLE = hasattr(_library, "horovod_edl_send_gradients")  # this Horovod has the edit


def average(gradient: Any, number: int) -> Any:
    """The mean over the ring of the gradient ``number``, as an operation of the graph."""
    wire = WIRE_DTYPE.get(gradient.dtype, gradient.dtype)
    mean = mpi_ops.MPI_LIB.horovod_allreduce(
        tf.cast(gradient, wire),
        name=f"edl_gradient_{number}",
        reduce_op=hvd.Average,
        prescale_factor=1.0,
        postscale_factor=1.0,
        ignore_name_scope=True,  # scopes may differ where a newcomer has traced less often
        process_set_id=hvd.global_process_set.process_set_id,
    )
    return tf.cast(mean, gradient.dtype)


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
