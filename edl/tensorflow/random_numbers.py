"""Seed the random generators of TensorFlow and Keras, so that no two workers draw the same numbers.

:mod:`edl.binding.loop` decides when. Keras' layers (Dropout, GaussianNoise,
augmentation) keep their seed in a variable. That variable is no part of the job's state: a newcomer
with the seed of another worker would draw the same numbers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.random.seed_generator import SeedGenerator, global_seed_generator
from tensorflow.python.eager import context

from edl.binding.loop import KEPT
from edl.step.source import derived_seed
from edl.tensorflow.variables import plain
from edl.worker.worker import Worker

SHARED = "global_seed_generator"  # the name of Keras' attribute for that of keras.random
SEED_STATE = "seed_generator_state"  # the name of a layer's variable for its seed


def is_seed(name: str) -> bool:
    """Return whether a variable, by its name in `variables_by_name`, has a Keras layer's seed."""
    return name.partition("#")[0].rpartition("/")[2].partition(":")[0] == SEED_STATE


def last_seed() -> int:
    """Return TensorFlow's global seed, which the script or edl has set last; 0: none was set."""
    return int(context.global_seed() or 0)


def set_global_seed(seed: int) -> None:
    """Set the seed of TensorFlow's next eager operations to one that none was made with."""
    # `tf.random.set_seed` also drops what TensorFlow has prepared to run each `tf.function`. To
    # prepare it again took 7 to 12 s for a Keras model of 60 residual blocks on two cores: when a
    # newcomer joins, all workers would wait for it. Operations that are kept, in a `tf.function` or
    # of an earlier seed, go on with their sequences.
    now = context.context()
    now._seed, now._rng = seed, random.Random(seed)


class Seeder:
    """The generators of TensorFlow and Keras: eager operations, keras.random, and layers."""

    def __init__(
        self,
        variables: Callable[[], Iterable[tuple[str, Any]]],
        warms_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self._variables, self._warms_up = variables, warms_up
        self._has_seeded = False
        self._shared: Any = None  # the generator of keras.random, of the training thread
        self._job: _JobGenerator | None = None  # stands in for it between steps

    def read(self) -> int:
        """Return TensorFlow's global seed."""
        shared = global_state.get_global_attribute(SHARED)
        if shared is not None:  # in another thread there is none; set_random_seed() makes another
            self._shared = shared
        return last_seed()

    def save(self) -> tuple[Any, Any]:
        """Return the state of eager operations; keras.random's stays in its generator."""
        now = context.context()
        if self._job is None and tf.executing_eagerly():  # at an epoch's start
            with tf.init_scope():
                self._shared, self._job = global_seed_generator(), _JobGenerator(seed=0)
        return now._seed, getattr(now, "_rng", None)  # none before the first seed

    def restore(self, saved: tuple[Any, Any]) -> None:
        """Set the state of eager operations, and let keras.random draw by its own generator."""
        now = context.context()
        now._seed, now._rng = saved
        if self._shared is not None:
            vars(self._shared).pop("next", None)

    def seed_between(self, seed: int) -> None:
        """Let eager operations and keras.random draw by `seed`."""
        if self._job is None:
            return
        if self._warms_up():  # eager operations go on where they were: not with the job's numbers
            seed = derived_seed(seed, "warm-up")
        set_global_seed(seed % 2**31)
        self._job.seed = seed
        self._shared.next = self._job.next

    def seed(self, seed: int) -> None:
        """Seed all generators from `seed`; do nothing in a script that builds graphs."""
        if not tf.executing_eagerly():  # the seeds of a graph are in its operations
            return
        # The first call lets each `tf.function` that was traced before begin its sequences again.
        set_seed = set_global_seed if self._has_seeded else tf.random.set_seed
        set_seed(seed % 2**31)
        self._has_seeded = True
        states = [(name, plain(v)) for name, v in self._variables() if is_seed(name)]
        shared = global_state.get_global_attribute(SHARED)
        if shared is not None:
            states.append(("keras", plain(shared.state)))
        for name, state in states:
            value = derived_seed(seed, name, *np.asarray(state.numpy()).tolist())
            state.assign(seed_state(value, state))


class _JobGenerator(SeedGenerator):
    """A generator of Keras that is seeded where it draws first: an assignment takes 50 µs."""

    seed: int | None = None

    def next(self, ordered: bool = True) -> Any:
        """Return the next seed of an operation."""
        if self.seed is not None:
            with tf.init_scope():
                self.state.assign(seed_state(self.seed, self.state))
            self.seed = None
        return super().next(ordered)


def seed_state(seed: int, state: Any) -> Any:
    """Return `seed` as a value of the variable `state` of a generator of Keras."""
    return np.array([seed % 2**32, seed >> 32], plain(state).dtype.as_numpy_dtype)


@contextmanager
def own_operation_seeds(worker: Worker) -> Iterator[None]:
    """Give random operations that are created in a `with` block seeds of this worker's own."""
    # For functions given to `Dataset.map`, whose operations would draw the same on each worker.
    now = context.context()
    first = not worker.warming_up and worker.generation <= 1
    if worker.same_random or now._seed is None or (first and worker.rank == KEPT):
        yield
        return
    own = ("rank", worker.rank) if first else ("worker", worker.id)
    seed, numbers = now._seed, now._rng
    set_global_seed(derived_seed(seed, *own) % 2**31)
    try:
        yield
    finally:
        now._seed, now._rng = seed, numbers
