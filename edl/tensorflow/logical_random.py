"""Seed TensorFlow's random generators for each logical worker, and refuse those that cannot be.

The numbers of a logical worker must not depend on the worker that runs it, and so on nothing that
was drawn before. :class:`LogicalSeeder` sets each generator anew: the states of Keras' layers and
of :class:`keras.random.SeedGenerator`, and TensorFlow's global seed for eager operations. An
operation in a graph keeps the seed with which it was traced, and a state that nobody can set. The
same holds for a ``tf.random.Generator``. :func:`watch_draws` refuses them where they are made or
used, and :func:`refuse_draws` in a graph that came from elsewhere.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import tensorflow as tf
from keras.src.random.seed_generator import SeedGenerator, global_seed_generator
from tensorflow.python.eager import context
from tensorflow.python.framework import random_seed

from edl.binding.loop import RandomNumbers
from edl.binding.process import current_worker, is_initialized
from edl.errors import UsageError
from edl.step.engine import Batch
from edl.step.source import derived_seed
from edl.tensorflow.probe import drawing_kinds, kinds_of
from edl.tensorflow.random_numbers import Seeder, is_seed, seed_state, set_global_seed
from edl.tensorflow.source import Load
from edl.tensorflow.variables import CREATED, plain
from edl.worker.worker import Worker

REFUSED = (
    "{what}, whose random numbers depend on what this worker has drawn before, and so on which "
    "logical workers it runs; draw them by keras.random or a layer of Keras, or leave out --logical"
)
IN_GRAPH = "a tf.function draws by an operation of TensorFlow's (tf.random, tf.nn.dropout)"
GENERATOR = "the script draws by a tf.random.Generator"
IN_SOURCE = (
    "the data source draws by {what}, and it is read while a training step may draw, too; draw "
    "there by Python's random or NumPy, which edl seeds for each logical worker's batch, or leave "
    "out --logical"
)
NEW = (
    "the training step has made a random generator of Keras (a layer, or a SeedGenerator), to "
    "which no logical worker's seed was given; make it before the first batch"
)
IN_MAP = (
    "the function that map() was given has {kind} in it, so what it makes of a sample may depend "
    "on what this worker has loaded before; with --logical do that in the source (its __getitem__ "
    "is seeded for each logical worker), or leave it out"
)
_OF_TF_DATA = "Dataset_"  # the names of graphs of functions given to a tf.data.Dataset begin so
_CALLS_OR_WRITES = ("PyFunc", "EagerPyFunc", "Assign")  # how kinds of operations begin

_drawn: set[int] = set()  # the global seeds with which eager operations were made


class _Reader(threading.local):
    """A flag of each thread: whether the thread is loading a batch of a logical worker."""

    loads = False


_reader = _Reader()


class LogicalSeeder(Seeder):
    """The random generators of TensorFlow and Keras, seeded from one number alone."""

    def __init__(self, variables: Callable[[], Iterable[tuple[str, Any]]]) -> None:
        super().__init__(variables)
        self._seeded: set[int] = set()  # ids of variables

    def seed(self, seed: int) -> None:
        if self._shared is None:
            with tf.init_scope():
                self._shared = global_seed_generator()
        number = seed % 2**31
        if number in _drawn:  # operations with this seed are kept, and have a state
            tf.random.set_seed(number)
            _drawn.discard(number)
        else:
            set_global_seed(number)
        with context.eager_mode():
            states = list(self._states())
            self._seeded = {id(state) for _, state in states}
            for name, state in states:
                state.assign(seed_state(derived_seed(seed, name), state))

    def check(self) -> None:
        """Raise UsageError if a generator of Keras exists that `seed` has not seeded."""
        if any(id(state) not in self._seeded for _, state in self._states()):
            raise UsageError(NEW)

    def _states(self) -> Iterator[tuple[str, Any]]:
        """Yield a name and the variable of each generator of Keras in this process."""
        known = set()
        for name, variable in self._variables():
            if is_seed(name):
                known.add(id(plain(variable)))
                yield name, plain(variable)
        if self._shared is not None:
            known.add(id(plain(self._shared.state)))
            yield "keras", plain(self._shared.state)
        others = (each for each in CREATED.alive() if is_seed(each.name))
        for number, variable in enumerate(each for each in others if id(each) not in known):
            yield f"generator {number}", variable


def seeded(load: Load, worker: Worker, numbers: RandomNumbers) -> Load:
    """Return `load`, a function that loads a batch, with random numbers of the batch alone."""

    def read(batch: Batch) -> Any:
        with numbers.loading(worker.loader.epoch, batch.position):
            _reader.loads = True
            try:
                return load(batch)
            finally:
                _reader.loads = False

    return read


@functools.cache
def watch_draws() -> None:
    get_seed, generator, of_keras = random_seed.get_seed, tf.random.Generator, SeedGenerator.next

    @functools.wraps(get_seed)
    def seeds(op_seed: Any) -> Any:
        if _has_logical():
            _refuse_reader("tf.random")
            if tf.executing_eagerly():
                _drawn.add(int(context.global_seed() or 0))
            elif not _is_of_data(tf.compat.v1.get_default_graph()):
                raise UsageError(REFUSED.format(what=IN_GRAPH))
        return get_seed(op_seed)

    @functools.wraps(of_keras)
    def next_of_keras(*arguments: Any, **named: Any) -> Any:
        _refuse_reader("keras.random, or a layer of Keras")
        return of_keras(*arguments, **named)

    random_seed.get_seed, SeedGenerator.next = seeds, next_of_keras
    for name in ("skip", "binomial"):  # all others call skip
        setattr(generator, name, _refusing(getattr(generator, name)))


def refuse_draws(definition: Any) -> None:
    """Refuse a `GraphDef` with random operations that have a state of their own."""
    for kind in drawing_kinds(definition):
        raise UsageError(REFUSED.format(what=f"a tf.function draws by {kind}"))


def refuse_unlike(mapped: Any) -> None:
    """Refuse the result of `map` if its function may make something else of the same samples."""
    function = getattr(mapped, "_map_func", None)
    if function is None:
        return
    definition = function.function.graph.as_graph_def()
    others = [one for one in kinds_of(definition) if one.startswith(_CALLS_OR_WRITES)]
    for kind in (*drawing_kinds(definition), *others):
        raise UsageError(IN_MAP.format(kind=kind))


def _refuse_reader(what: str) -> None:
    if _reader.loads:
        raise UsageError(IN_SOURCE.format(what=what))


def _refusing(method: Any) -> Any:

    @functools.wraps(method)
    def refusing(*arguments: Any, **named: Any) -> Any:
        if _has_logical():
            _refuse_generator()
        return method(*arguments, **named)

    return refusing


def _refuse_generator() -> NoReturn:
    raise UsageError(REFUSED.format(what=GENERATOR))


def _has_logical() -> bool:
    return is_initialized() and current_worker().logical > 0


def _is_of_data(graph: Any) -> bool:
    """Return whether `graph` is of, or inside of, a function given to a `tf.data.Dataset`."""
    while graph is not None:
        if str(getattr(graph, "name", "")).startswith(_OF_TF_DATA):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False
