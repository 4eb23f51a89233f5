"""Normalise Keras batches with the mean and variance of the samples of all workers in a step.

``keras.layers.BatchNormalization(synchronized=True)`` asks ``tf.distribute`` for other replicas.
Under edl there are none, so the layer would take the statistics of one worker for those of all.
While edl trains, the layer's mean and variance are computed over the batches of all workers, by
exchanges over the job's ring.

Let worker i have n_i samples that count in this batch (0 for padding), N be the sum of all n_i, and
L_i be the mean of its losses. edl multiplies its gradients by n_i / N, so the job's loss is sum_i
n_i / N L_i. Let dm_j, dv_j be the derivatives of L_j by the mean and the variance, and M the number
of elements per channel in the batches of all workers. Through the statistics, the derivative of the
job's loss by an input x of worker i is

    1/M sum_j n_j / N dm_j + 2 (x - mean) / M sum_j n_j / N dv_j

The backward pass returns this derivative divided by n_i / N, so that N cancels
(:mod:`edl.torch.sync_batch_norm` has the same formula with the rest of the layer). Each layer has
two exchanges a step, which are made again in the next ring if the ring breaks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError
from keras.src.backend.tensorflow import nn

from edl.binding import process
from edl.errors import RingBroken, UsageError
from edl.step.moments import Moments, combined, weighted_sum
from edl.tensorflow import training
from edl.tensorflow.collectives import check_no_xla

# ------------------------------------------------------------
# Exchange messages between workers inside of forward and backward passes, in Keras and in graphs.
#
# Layers with `synchronized=True` use it. TensorFlow runs operations that do not depend on each
# other in any order. An exchange is matched with those of the other workers by its position in the
# order alone, so `in_turn` runs the exchanges of a graph in the order in which they were built,
# which is the same on all workers. If a graph calls two functions that have exchanges, each
# function seems to write one resource, and TensorFlow never runs two such calls at once, so their
# order is kept, too.
#
# Each message carries the number of its exchange in the graph. If the numbers of the workers differ
# all the same, UsageError is raised.

Vector = npt.NDArray[np.float64]
Exchange = Callable[[bytes], list[bytes]]
# What a layer calls in a pass, with its row of numbers, the exchange (None: alone), and the batch's
# weight; it returns the numbers with which the pass continues.
Act = Callable[[Vector, Exchange | None, int], Vector]
_LAST = "_edl_exchange"  # of a graph: the operation that ends its newest exchange
_NUMBERS = "_edl_exchanges"  # of a graph: how many there are

OTHER_PLACE = (
    "in one step the workers came to different layers with synchronized=True; all must call the "
    "same layers in the same order for each batch"
)

WITH_XLA = (
    "a layer with synchronized=True is called in a tf.function with jit_compile=True, and XLA "
    "cannot compile collectives: leave jit_compile out there"
)

_eager: tuple[tuple[int, int], int] = ((0, 0), 0)  # a step, and how many exchanges it had


def next_number() -> int:
    """Return the number of the next exchange, from 1 in each graph, or eagerly in each step."""
    global _eager
    if tf.executing_eagerly():
        worker = process.current_worker()
        step = (id(worker), worker.steps.begun)
        _eager = (step, _eager[1] + 1 if step == _eager[0] else 1)
        return _eager[1]
    graph = tf.compat.v1.get_default_graph()
    number = getattr(graph, _NUMBERS, 0) + 1
    setattr(graph, _NUMBERS, number)
    return number


def exchange_of_step() -> tuple[Exchange | None, int]:
    """Return what exchanges messages with all workers, and the samples of the batch that count.

    It is (None, 0) if no other worker takes part: in a warm-up, alone, or between steps.
    """
    if not process.is_initialized():
        return None, 0
    worker = process.current_worker()
    if worker.steps is worker.script:
        if worker.warming_up or worker.ring.alone:
            return None, 0
        return _exchange_of_script, 1  # Horovod's optimizer counts all workers alike
    exchange = training.current().reduction.exchange()
    return exchange, 0 if exchange is None else worker.loader.batch_weight


def _exchange_of_script(payload: bytes) -> list[bytes]:
    try:
        return process.current_worker().script.exchange(payload)
    except RingBroken as error:  # which interrupts elastic.run's function, as Horovod's would
        raise HorovodInternalError(f"Horovod has been shut down. {error}") from error


def numbered(exchange: Exchange, number: int, row: Vector) -> list[bytes]:
    answer = exchange(np.concatenate([[float(number)], row]).tobytes())
    first = np.dtype(np.float64).itemsize
    if len({(each[:first], len(each)) for each in answer}) > 1:
        raise UsageError(OTHER_PLACE)
    return [each[first:] for each in answer]


def in_turn(act: Act, row: Any, length: int | None) -> Any:
    """Call `act` for the open step, after the exchanges that the graph has; return its result.

    It is a float64 tensor with one axis, as `row`, of `length` elements if that is known.
    """
    if tf.executing_eagerly():
        return tf.convert_to_tensor(act(np.asarray(row), *exchange_of_step()), tf.float64)
    check_no_xla(WITH_XLA)
    graph = tf.compat.v1.get_default_graph()
    before = [getattr(graph, _LAST)] if hasattr(graph, _LAST) else []
    with tf.control_dependencies([*before, row]):
        begun = _write_nothing()
    with tf.control_dependencies([*before, *begun]):
        found = tf.numpy_function(_from_graph(act), [row], tf.float64, name="edl_exchange")
    with tf.control_dependencies([found]):
        ended = _write_nothing()
    found.set_shape((length,))
    setattr(graph, _LAST, (ended or [found.op])[0])
    return found


def _write_nothing() -> list[Any]:
    """Add an operation to the graph that seems to write a resource, to keep calls in order."""
    if not tf.compat.v1.executing_eagerly_outside_functions():
        return []  # a graph of TensorFlow 1 calls none
    return [tf.raw_ops.AssignVariableOp(resource=_resource(), value=tf.constant(0))]


@functools.cache
def _resource() -> Any:
    # None of the variables that a script sees, or that newcomers receive.
    with tf.init_scope(), tf.device("/cpu:0"):
        return tf.raw_ops.VarHandleOp(dtype=tf.int32, shape=(), shared_name="edl_exchange")


def _from_graph(act: Act) -> Callable[[Vector], Vector]:
    def from_graph(row: Vector) -> Vector:
        if not process.is_initialized():
            return act(row, None, 0)
        failure: HorovodInternalError | None = None

        def attempt() -> Vector | None:
            nonlocal failure
            try:
                return act(row, *exchange_of_step())
            except HorovodInternalError as error:  # the function of elastic.run is broken off
                failure = error
                return None

        found = training.current().reduction.from_graph(attempt, None)
        if failure is not None:
            raise failure
        return act(row, None, 0) if found is None else found

    return from_graph


_ALONE = -1.0  # the weight of a batch whose statistics are this worker's own

NO_SECOND_DERIVATIVE = (
    "a layer with synchronized=True has no second derivative over the workers (a gradient "
    "penalty); leave synchronized=True out, or take keras.layers.LayerNormalization"
)

OTHER_AXIS = (
    "BatchNormalization(synchronized=True) with a mask normalises the last axis; with axis={}, "
    "leave the mask or synchronized=True out"
)

WITHOUT_LOGICAL = (
    "a layer with synchronized=True takes its statistics from all workers, so the result would "
    "depend on their number; with logical workers leave synchronized=True out (the averages of "
    "BatchNormalization are then the mean over all of them), or leave out --logical"
)


@functools.cache
def synchronise_batch_norm() -> None:
    plain, of_layer = nn._compute_moments_sync, keras.layers.BatchNormalization._moments

    @functools.wraps(plain)
    def moments(x: Any, axes: Any, keepdims: Any) -> Any:
        if not _has_others():
            return plain(x, axes, keepdims)
        mean, variance, _elements = moments_of_step(x, axes)
        return (
            (mean, variance) if keepdims else (tf.squeeze(mean, axes), tf.squeeze(variance, axes))
        )

    @functools.wraps(of_layer)
    def moments_of_layer(self: Any, inputs: Any, mask: Any) -> Any:
        if not (self.synchronized and _has_others()):
            return of_layer(self, inputs, mask)
        # `mask`: booleans in the shape of `inputs` without the last axis, True for what counts.
        if mask is not None:
            if self.axis not in (-1, len(inputs.shape) - 1):
                raise UsageError(OTHER_AXIS.format(self.axis))
            mask = tf.cast(mask, tf.bool)[..., tf.newaxis]
        *of_step, elements = moments_of_step(inputs, self._reduction_axes, mask)
        # If nothing counts on any worker, the step leaves the moving averages as they are.
        moving = (tf.convert_to_tensor(v) for v in (self.moving_mean, self.moving_variance))
        return tuple(
            tf.where(elements > 0, tf.reshape(new, tf.shape(own)), tf.cast(own, new.dtype))
            for new, own in zip(of_step, moving, strict=True)
        )

    nn._compute_moments_sync = moments
    keras.layers.BatchNormalization._moments = moments_of_layer


@keras.saving.register_keras_serializable(package="edl")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """A ``keras.layers.BatchNormalization(synchronized=True)`` under Horovod's name.

    Args:
        fused: must be False, as in Horovod.
        options: the options of ``keras.layers.BatchNormalization``, by name, without
            ``synchronized`` or with ``synchronized=True``.

    Raises:
        ValueError: ``fused`` is something else, or ``synchronized`` is False.
    """

    def __init__(self, fused: bool = False, **options: Any) -> None:
        if fused is not False:
            raise ValueError(
                f"SyncBatchNormalization does not support fused={fused!r}; give the options of "
                "keras.layers.BatchNormalization by name"
            )
        if not options.pop("synchronized", True):
            raise ValueError(
                "SyncBatchNormalization has synchronized=True; take keras.layers.BatchNormalization"
            )
        super().__init__(synchronized=True, **options)


def _has_others() -> bool:
    if not (process.is_initialized() and process.current_worker().is_shared):
        return False
    if process.current_worker().logical:
        raise UsageError(WITHOUT_LOGICAL)
    training.current()  # in the thread that trains
    return True


def moments_of_step(x: Any, axes: Any, mask: Any = None) -> tuple[Any, Any, Any]:
    """Return mean, variance and number of elements per channel over the batches of all workers.

    All workers call it equally often in a step; in a warm-up and between steps the results are this
    worker's own. Gradients flow back through mean and variance. `mask` broadcasts to `x`.
    """
    number = next_number()
    # A repair of the ring within the exchange reads the model's variables. It must not happen in a
    # function with a custom gradient, which refuses each variable that it has no gradient for.
    own_mean, own_variance, count = _own_moments(tf.stop_gradient(x), axes, mask)
    shape, channels = tf.shape(own_mean), own_mean.shape.num_elements()
    parts = [_flat(count), _flat(own_mean), _flat(own_variance) * tf.cast(count, tf.float64)]
    length = None if channels is None else 2 + 2 * channels
    act = functools.partial(_exchange_moments, number)
    combined_row = in_turn(act, tf.concat(parts, 0), length)
    weight, elements = combined_row[0], combined_row[1]
    mean, variance = (
        # The known shape is set again: the exchange has lost it.
        tf.ensure_shape(tf.cast(tf.reshape(part, shape), x.dtype), own_mean.shape)
        for part in tf.split(combined_row[2:], 2)
    )

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def moments(x: Any) -> Any:
        def gradient(by_mean: Any, by_variance: Any, _by_elements: Any) -> Any:
            return _derivative(number, x, mask, mean, weight, elements, by_mean, by_variance)

        return (mean, variance, elements), gradient

    found: tuple[Any, Any, Any] = moments(x)
    return found


def _own_moments(x: Any, axes: Any, mask: Any) -> tuple[Any, Any, Any]:
    if mask is None:
        mean, variance = tf.nn.moments(x, axes, keepdims=True)
        count = tf.size(x, tf.int64) // tf.maximum(tf.size(mean, tf.int64), 1)
        nothing = tf.equal(count, 0)
        zeros = tf.zeros_like(mean)
        return tf.where(nothing, zeros, mean), tf.where(nothing, zeros, variance), count
    count = tf.math.count_nonzero(mask)
    divisor = tf.cast(tf.maximum(count, 1), x.dtype)
    mean = tf.reduce_sum(tf.where(mask, x, 0), axes, keepdims=True) / divisor
    apart = tf.where(mask, x - mean, 0)
    return mean, tf.reduce_sum(tf.square(apart), axes, keepdims=True) / divisor, count


def _derivative(
    number: int,
    x: Any,
    mask: Any,
    mean: Any,
    weight: Any,
    elements: Any,
    by_mean: Any,
    by_variance: Any,
) -> Any:
    # With D and V, the sums over all workers j of n_j dm_j and of n_j dv_j, it is
    # (D + 2 (x - mean) V) / (n_i M). `weight` is n_i, `elements` M.
    channels = by_mean.shape.num_elements()
    row = tf.stop_gradient(tf.concat([[weight], _flat(by_mean), _flat(by_variance)], 0))
    act = functools.partial(_exchange_derivatives, number)
    sums = in_turn(act, row, None if channels is None else 2 * channels)  # see moments_of_step
    a, b = (
        tf.cast(tf.reshape(part / tf.maximum(elements, 1.0), tf.shape(by_mean)), x.dtype)
        for part in tf.split(sums, 2)
    )

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def derivative(x: Any, _by_mean: Any, _by_variance: Any) -> Any:
        found = a + 2.0 * (x - mean) * b

        def refuse(*_derivatives: Any) -> Any:
            raise UsageError(NO_SECOND_DERIVATIVE)

        return found if mask is None else tf.where(mask, found, 0), refuse

    return derivative(x, by_mean, by_variance)


def _flat(values: Any) -> Any:
    return tf.reshape(tf.cast(values, tf.float64), [-1])


def _exchange_moments(number: int, row: Vector, exchange: Exchange | None, weight: int) -> Vector:
    # `row`: elements per channel, then each channel's mean, then its sum of squared deviations.
    own = Moments.decode(row.tobytes())
    if exchange is None:
        found, weight_of = own, _ALONE
    else:
        nothing = np.zeros_like(row)  # of a padding batch
        answer = numbered(exchange, number, row if weight else nothing)
        found, weight_of = combined([Moments.decode(each) for each in answer]), float(weight)
    return np.concatenate([[weight_of, found.elements], found.mean, found.variance])


def _exchange_derivatives(
    number: int, row: Vector, exchange: Exchange | None, _weight: int
) -> Vector:
    # `row`: n_i, then dm_i of each channel, then dv_i. Alone, also in the forward pass, the sums
    # are this worker's own.
    if exchange is None or row[0] == _ALONE:
        return row[1:]
    return weighted_sum(numbered(exchange, -number, row)) / (row[0] or 1.0)
