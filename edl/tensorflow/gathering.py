"""Define ``edl.gather`` and ``edl.sum``, which combine arrays of all workers between two steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from edl.binding.reduction import Array, check_rows, check_same_shape, gather_arrays


def gather(value: Any) -> Array:
    """Return the rows of all workers' arrays in one array, in rank order, the same on all workers.

    All workers call it at the same place in their scripts, between two steps and outside of a
    ``tf.function``, and each waits for all. In a newcomer's warm-up the result has this worker's
    rows only.

    Args:
        value: an array, a tensor or a number. The first dimension may differ between workers. If it
            is a number, the result has one element for each worker.

    Returns:
        A numpy array of the type of ``value``.

    Raises:
        UsageError: shapes differ beyond the first dimension, or types differ; or the call is in the
            midst of a step, or outside of the training.
        WorkerEvicted, JobFailed: this worker or the job cannot go on.
    """
    own = _array(value)
    parts = [each[""] for each in gather_arrays({"": own.reshape(1) if own.ndim == 0 else own})]
    check_rows("", parts)
    return np.concatenate(parts)


def sum(value: Any) -> Array:
    """Return the elementwise sum of all workers' arrays, the same on all workers.

    All workers call it at the same place in their scripts, between two steps and outside of a
    ``tf.function``, and each waits for all. In a newcomer's warm-up the result is its own
    ``value``. Integers, and booleans counted as int64, are added exactly, other numbers in double
    precision.

    Args:
        value: an array, a tensor or a number, of the same shape on all workers.

    Returns:
        A numpy array with the shape and type of ``value``; for booleans the type is int64.

    Raises:
        UsageError: shapes or types differ; or the call is in the midst of a step, or outside of the
            training.
        WorkerEvicted, JobFailed: this worker or the job cannot go on.
    """
    own = _array(value)
    parts = [each[""] for each in gather_arrays({"": own})]
    check_same_shape("", parts)
    total = np.sum([part.astype(_wide(own.dtype)) for part in parts], axis=0)
    return np.asarray(total if own.dtype == np.bool_ else total.astype(own.dtype))


def _array(value: Any) -> Array:
    return np.asarray(value.numpy() if isinstance(value, tf.Tensor) else value)


def _wide(kind: Any) -> Any:
    """Return the type in which arrays of the type `kind` are added."""
    if np.issubdtype(kind, np.integer) or kind == np.bool_:
        return np.int64
    # bfloat16 is no floating type to NumPy
    return np.complex128 if np.issubdtype(kind, np.complexfloating) else np.float64
