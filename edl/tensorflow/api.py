"""Define the functions of ``edl.tensorflow`` that depend on TensorFlow: init, track, step, mean.

The functions that do not depend on a framework are in :mod:`edl.binding.process`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from edl.binding import api, process
from edl.binding.loop import numpy_is_seeded, seed_alike, seed_numpy
from edl.binding.reduction import Array, check_rows, check_same_shape, gather_arrays
from edl.errors import EdlError
from edl.tensorflow import optimizer, training
from edl.tensorflow.batch_norm import synchronise_batch_norm
from edl.tensorflow.collectives import TensorFlowCollectives
from edl.tensorflow.logical import watch_draws
from edl.tensorflow.replica import TensorFlowReplica
from edl.tensorflow.training import watch_losses
from edl.tensorflow.variables import CREATED

# ------------------------------------------------------------
# Define `edl.gather` and `edl.sum`, which combine arrays of all workers between two steps.


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

    It is called as :func:`gather` is, and raises the same errors, also where shapes differ at all.
    Integers, and booleans counted as int64, are added exactly, other numbers in double precision.

    Args:
        value: an array, a tensor or a number, of the same shape on all workers.

    Returns:
        A numpy array with the shape and type of ``value``; for booleans the type is int64.
    """
    own = _array(value)
    parts = [each[""] for each in gather_arrays({"": own})]
    check_same_shape("", parts)
    total = np.sum([part.astype(_wide(own.dtype)) for part in parts], axis=0)
    return np.asarray(total if own.dtype == np.bool_ else total.astype(own.dtype))


def _array(value: Any) -> Array:
    return np.asarray(value.numpy() if isinstance(value, tf.Tensor) else value)


def _wide(kind: Any) -> Any:
    if np.issubdtype(kind, np.integer) or kind == np.bool_:
        return np.int64
    # bfloat16 is no floating type to NumPy
    return np.complex128 if np.issubdtype(kind, np.complexfloating) else np.float64


# AutoGraph lets such an error pass as it is, and writes nothing around its sentence.
EdlError.ag_pass_through = True  # type: ignore[attr-defined]
EdlError._keras_call_info_injected = True  # type: ignore[attr-defined]  # nor does Keras


def init(**settings: Any) -> None:
    """Make this process a worker of the job for which the launcher started the process.

    Without a launcher the script is a job of one worker. In a job that begins, the call waits until
    the job's first ring is built. In a job that is already training, the call returns at once and
    the script *warms up*: this worker trains its first batch alone, and the result is discarded. If
    the process is a worker already, the call does nothing; only at a Python prompt without a
    launcher it ends the job and begins another.

    Args:
        settings: fields of :class:`edl.config.Config`, by name. Those that the launcher has decided
            for the job are ignored, with a warning.

    Raises:
        ConfigError: a setting has no usable value.
        CoordinationError: ZooKeeper cannot be reached, or does not know the job.
        JobFailed: the job did not start in time.
        UsageError: a worker has started this process as its child, or a launcher without elasticity
            has started it.
    """
    process.start(TensorFlowCollectives, settings)
    seed_alike(process.current_worker(), {seed_numpy: numpy_is_seeded()})
    CREATED.watch()
    optimizer.watch()
    synchronise_batch_norm()
    if process.current_worker().logical:
        watch_draws()
    watch_losses()


def track(**objects: Any) -> None:
    """Add ``objects`` to the job's state, which newcomers and checkpoints receive.

    The keyword of an object is its name in the state, the same on all workers. An object has
    variables (``tf.Variable``, ``tf.Module``, a Keras layer, a list of variables), or the methods
    ``state_dict()`` and ``load_state_dict()``. Objects of earlier calls stay. An object may be
    given again.

    Raises:
        UsageError: :func:`init` was not called, an object has neither variables nor these two
            methods, another object has the same name, or the script has an elastic state of
            Horovod, to which the objects must be given. No object is added then.
    """
    process.track(TensorFlowReplica.check, objects)


def step() -> int:
    """Return how many optimizer updates the whole job has made, this worker's last one included.

    An update that all workers make together counts once. The number is 0 before the job's first
    update.

    Raises:
        UsageError: :func:`init` was not called.
    """
    return process.step() + int(training.current().has_made_update)


def mean(value: Any, weight: float | None = None) -> Any:
    """Return the weighted mean of ``value`` over all workers, the same on all of them.

    All workers call this function at the same place in their scripts, after the update of a batch
    and before the next batch. The call first completes the step of that batch, so that the batch's
    samples count as trained; it waits for the other workers.

    Args:
        value: a number, or a dict of numbers with the same keys on all workers.
        weight: the number of samples that ``value`` stands for; None: the samples of this worker's
            batch. A value with weight 0 is left out.

    Returns:
        A float, or for a dict a dict of floats; nan if the weights of all workers are 0.

    Raises:
        UsageError: the update of the batch in hand is not made yet, the call is outside of the
            training, a value is not a number, or ``weight`` is negative.
        WorkerEvicted, JobFailed: this worker or the job cannot go on.
    """
    return api.mean(value, weight)
