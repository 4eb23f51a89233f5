"""Exchange messages between workers inside of forward and backward passes, in Keras and in graphs.

Layers with ``synchronized=True`` use it. TensorFlow runs operations that do not depend on each
other in any order. An exchange is matched with those of the other workers by its position in the
order alone, so :func:`in_turn` runs the exchanges of a graph in the order in which they were built,
which is the same on all workers. If a graph calls two functions that have exchanges, each function
seems to write one resource, and TensorFlow never runs two such calls at once, so their order is
kept, too.

Each message carries the number of its exchange in the graph (:func:`next_number`,
:func:`numbered`). If the numbers of the workers differ all the same, UsageError is raised.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError

from edl.binding import process
from edl.errors import RingBroken, UsageError
from edl.tensorflow import training
from edl.tensorflow.collectives import refuse_xla

Vector = npt.NDArray[np.float64]
Exchange = Callable[[bytes], list[bytes]]

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


class _EagerNumbers:
    """A counter of the exchanges of a step in eager execution."""

    def __init__(self) -> None:
        self._step = (0, 0)
        self._next = 0

    def take(self) -> int:
        worker = process.current_worker()
        step = (id(worker), worker.steps.begun)
        if step != self._step:
            self._step, self._next = step, 0
        self._next += 1
        return self._next


_eager_numbers = _EagerNumbers()


def next_number() -> int:
    """Return the number of the next exchange, from 1 in each graph, or eagerly in each step."""
    if tf.executing_eagerly():
        return _eager_numbers.take()
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
    """Exchange rows with all workers, all at the exchange `number`; return them without that."""
    answer = exchange(np.concatenate([[float(number)], row]).tobytes())
    first = np.dtype(np.float64).itemsize
    if len({(each[:first], len(each)) for each in answer}) > 1:
        raise UsageError(OTHER_PLACE)
    return [each[first:] for each in answer]


class Act(Protocol):
    """A function that a layer calls in a forward or backward pass, to combine workers' numbers."""

    def __call__(self, row: Vector, exchange: Exchange | None, weight: int) -> Vector:
        """Return the numbers with which the pass continues; without `exchange`, this worker's."""


def in_turn(act: Act, row: Any, length: int | None) -> Any:
    """Call `act` for the open step, after the exchanges that the graph has; return its result.

    It is a float64 tensor with one axis, as `row`, of `length` elements if that is known.
    """
    if tf.executing_eagerly():
        return tf.convert_to_tensor(act(np.asarray(row), *exchange_of_step()), tf.float64)
    refuse_xla(WITH_XLA)
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
    """Return a function that calls `act` in a graph, whose errors the training thread raises."""

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
