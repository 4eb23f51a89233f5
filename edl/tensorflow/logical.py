"""Make a step of logical workers the same, bit for bit, however many workers run them.

A job with logical workers (the setting ``logical``) trains one microbatch for each of them in each
step. Their gradients are kept apart until the step ends, and then the exact means are computed
(:mod:`edl.binding.exact`). Each begins with the same values of the variables that a forward pass
changes (BatchNorm's averages); at the end of the step each of these is the mean over all of them. A
``tf.function`` calls back into Python for this, once, when all of its gradients are computed and
its forward pass has written its variables.
"""

from __future__ import annotations

import functools
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from keras.src.random.seed_generator import SeedGenerator, global_seed_generator
from tensorflow.python.eager import context
from tensorflow.python.framework import op_def_registry, random_seed
from tensorflow.python.framework.func_graph import FuncGraph

from edl.binding.api import of_onednn
from edl.binding.exact import (
    CHUNK,
    ExactAudit,
    Summands,
    add_rounded,
    divide_into,
    exact_means,
    logical_workers_of_step,
)
from edl.binding.loop import PassOptions, RandomNumbers
from edl.binding.process import current_worker, is_initialized
from edl.binding.reduction import StepReduction
from edl.binding.replica import of_array
from edl.config import environment
from edl.errors import RingBroken, UsageError
from edl.job.script import Arithmetic
from edl.ring.ring import CollectiveFailed
from edl.step.engine import Batch, StepState
from edl.step.source import derived_seed
from edl.step.weighting import Weights
from edl.tensorflow.collectives import allreduce_of
from edl.tensorflow.lr_schedules import with_inner
from edl.tensorflow.replica import Seeder, is_seed, seed_state, set_global_seed
from edl.tensorflow.source import Load
from edl.tensorflow.variables import CREATED, Array, plain
from edl.worker.worker import Worker

# ------------------------------------------------------------
# Seed TensorFlow's random generators for each logical worker, and refuse those that cannot be.
#
# The numbers of a logical worker must not depend on the worker that runs it, and so on nothing that
# was drawn before. Each generator is set anew: the states of Keras' layers and of `SeedGenerator`,
# and TensorFlow's global seed for eager operations. An operation in a graph keeps the seed with
# which it was traced, and a state that nobody can set, and so does a `tf.random.Generator`: they
# are refused where they are made or used, and in a graph that came from elsewhere.

REFUSED = (
    "{drawing}, whose random numbers depend on what this worker has drawn before, and so on which "
    "logical workers it runs; draw them by keras.random or a layer of Keras, or leave out --logical"
)

IN_GRAPH = "a tf.function draws by an operation of TensorFlow's (tf.random, tf.nn.dropout)"
GENERATOR = "the script draws by a tf.random.Generator"

IN_SOURCE = (
    "the data source draws by {generator}, and it is read while a training step may draw, too; "
    "draw there by Python's random or NumPy, which edl seeds for each logical worker's batch, or "
    "leave out --logical"
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
    loads = False


_reader = _Reader()


class LogicalSeeder(Seeder):
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
        if any(id(state) not in self._seeded for _, state in self._states()):
            raise UsageError(NEW)

    def _states(self) -> Iterator[tuple[str, Any]]:
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
            _check_reader("tf.random")
            if tf.executing_eagerly():
                _drawn.add(int(context.global_seed() or 0))
            else:  # not in, or inside of, a function given to a `tf.data.Dataset`
                graph = tf.compat.v1.get_default_graph()
                while graph is not None:
                    if str(getattr(graph, "name", "")).startswith(_OF_TF_DATA):
                        return get_seed(op_seed)
                    graph = getattr(graph, "outer_graph", None)
                raise UsageError(REFUSED.format(drawing=IN_GRAPH))
        return get_seed(op_seed)

    @functools.wraps(of_keras)
    def next_of_keras(*arguments: Any, **named: Any) -> Any:
        _check_reader("keras.random, or a layer of Keras")
        return of_keras(*arguments, **named)

    random_seed.get_seed, SeedGenerator.next = seeds, next_of_keras
    for name in ("skip", "binomial"):  # all others call skip
        setattr(generator, name, _checking(getattr(generator, name)))


def check_deterministic(mapped: Any) -> None:
    function = getattr(mapped, "_map_func", None)
    if function is None:
        return
    definition = function.function.graph.as_graph_def()
    others = [one for one in kinds_of(definition) if one.startswith(_CALLS_OR_WRITES)]
    for kind in (*drawing_kinds(definition), *others):
        raise UsageError(IN_MAP.format(kind=kind))


def _check_reader(generator: str) -> None:
    if _reader.loads:
        raise UsageError(IN_SOURCE.format(generator=generator))


def _checking(method: Any) -> Any:

    @functools.wraps(method)
    def checked(*arguments: Any, **named: Any) -> Any:
        if _has_logical():
            raise UsageError(REFUSED.format(drawing=GENERATOR))
        return method(*arguments, **named)

    return checked


def _has_logical() -> bool:
    return is_initialized() and current_worker().logical > 0


SEEDS_DIFFER = (
    "the workers have seeded TensorFlow with different numbers, so the result of a logical worker "
    "would depend on the worker that runs it; call keras.utils.set_random_seed() with the same "
    "number on all workers (edl seeds each logical worker anew), without edl.rank() in it, or "
    "leave out --logical"
)

THREADS_DIFFER = (
    "the workers compute with different numbers of threads, by which sums are rounded "
    "differently; call tf.config.threading.set_intra_op_parallelism_threads() with the same "
    "number on all workers, or leave out --logical"
)

NOT_IN_ALL = (
    "{name} has a gradient for some logical workers and none for others; let the same variables "
    "have one in each batch, or leave out --logical"
)

CHANGED = (
    "{name} was changed after the gradients of a logical worker were computed, so its value would "
    "depend on how many logical workers this worker runs; change variables of the model in the "
    "forward pass before the gradients only, or leave out --logical"
)

OUTSIDE = (
    "{name} is used in one tf.function, and the gradients are applied in another one inside of it, "
    "so nobody could tell what is done first; with --logical compute the loss in the function in "
    "which the gradients are applied"
)

ONE_MODEL = (
    "the job has logical workers, which all begin with the same averages of BatchNorm, and this "
    "script does not say which model they are of; give it: edl.Optimizer(optimizer, model)"
)


class _TensorSpec(NamedTuple):
    shape: tuple[int, ...]
    dtype: Any


class _Arrays:
    """An `exact_mean.ArrayKind` of NumPy's arrays; complex numbers count as two real ones."""

    def largest(self, values: Sequence[Array]) -> list[float]:
        """Return for each array the largest absolute value in it that is finite, or 0.0."""
        return [self._largest(self._flat(one)) for one in values]

    def add_up(self, rows: Sequence[Summands], constants: Sequence[float]) -> Array:
        size = sum(self._size(row.target) for row in rows)
        sums, scratch = np.empty(size, np.float64), np.empty(min(CHUNK, size), np.float64)
        for row, constant, part in zip(rows, constants, self._parts(rows, sums), strict=True):
            own = [(self._flat(values), weight) for values, weight in row.own]
            add_rounded(part, own, constant, scratch)
        return sums

    def means(self, rows: Sequence[Summands], sums: Array) -> list[Array]:
        means = []
        for row, part in zip(rows, self._parts(rows, sums), strict=True):
            mean = np.empty(row.target.shape, row.target.dtype)
            flat = self._flat(mean)  # shares its memory
            divide_into(flat, part, row.divisor, whole=mean.dtype.kind in "biu")
            means.append(mean)
        return means

    def _parts(self, rows: Sequence[Summands], sums: Array) -> Iterator[Array]:
        begin = 0
        for row in rows:
            end = begin + self._size(row.target)
            yield sums[begin:end]
            begin = end

    def _size(self, target: _TensorSpec) -> int:
        return math.prod(target.shape) * (2 if target.dtype.kind == "c" else 1)

    def _flat(self, values: Array) -> Array:
        flat = np.ascontiguousarray(values).reshape(-1)
        return flat.view(flat.real.dtype) if flat.dtype.kind == "c" else flat

    def _largest(self, flat: Array) -> float:
        if not flat.size:
            return 0.0
        least, most = float(flat.min()), float(flat.max())
        if math.isfinite(least) and math.isfinite(most):
            return max(-least, most)
        return self._largest(flat[np.isfinite(flat)])


ARRAYS = _Arrays()


class LogicalBuffers:
    def __init__(self, variables: Callable[[], Mapping[str, Any]]) -> None:
        self._variables = variables
        self._known: dict[str, Any] = {}  # by name, those of the step
        self._before: dict[str, Array] = {}
        self._after: list[dict[str, Array]] = []  # by logical worker: those that it has changed
        self._expected: dict[str, Array] = {}  # what they are as long as only edl writes

    def begin_step(self) -> None:
        self._known = dict(self._variables())
        self._before = self._expected = self._values()
        self._after = []

    @property
    def names(self) -> list[str]:
        return [f"the variable {name}" for name in self._before]

    def end_piece(self, counts: bool) -> list[Array]:
        """Return what a pass has made of the variables, which get the step's first values again."""
        values = self._values()
        changed = {name: now for name, now in values.items() if not _same(now, self._before[name])}
        if counts:  # else a padding batch
            self._after.append(changed)
        self._write({name: self._before[name] for name in changed})
        self._expected = self._values()
        return [*values.values()]

    def check(self) -> None:
        """Raise UsageError if a variable was changed since edl has written it last."""
        for name, now in self._values().items():
            if not _same(now, self._expected[name]):
                raise UsageError(CHANGED.format(name=name))

    def summands(self, pieces: int) -> Iterator[Summands]:
        for name, before in self._before.items():
            own = [(one.get(name, before), 1.0) for one in self._after]
            like = _TensorSpec(before.shape, before.dtype)
            counts = any(name in one for one in self._after)
            yield Summands(like, own, float(pieces), counts, before)

    def place(self, means: Sequence[Array | None]) -> None:
        """Set the variables to their `means`, in the order of `summands`; None: as they are."""
        found = zip(self._before, means, strict=True)
        self._write({name: mean for name, mean in found if mean is not None})
        self._after = []
        self._expected = self._values()

    def _values(self) -> dict[str, Array]:
        with context.eager_mode():
            return {name: _array(each.read_value()) for name, each in self._known.items()}

    def _write(self, values: Mapping[str, Array]) -> None:
        with context.eager_mode():
            for name, value in values.items():
                self._known[name].assign(value)


class LogicalReduction:
    def __init__(
        self,
        worker: Worker,
        reduction: StepReduction,
        buffers: Callable[[], Mapping[str, Any]],
        numbers: RandomNumbers,
        check: Callable[[], None],
    ) -> None:
        self._worker, self._reduction = worker, reduction
        worker.describe_arithmetic(_arithmetic)
        self._numbers, self._check_numbers = numbers, check
        self._buffers, self._variables = LogicalBuffers(buffers), buffers
        self._audit = ExactAudit(worker)
        self._options = PassOptions()
        self._kept: list[tuple[list[Array | None], float]] = []  # by logical worker, and its weight
        self._likes: list[_TensorSpec] = []  # of the gradients
        self._names: list[str] = []
        self._step = -1
        self._in_piece = False
        self._checks = False  # whether the values of the buffers are edl's

    @property
    def is_kept(self) -> bool:
        """Whether a step is open, and its newest logical worker has its gradients."""
        return self._worker.loader.open and not self._in_piece

    def begin_piece(self) -> None:
        loader, step = self._worker.loader, self._reduction.step.number
        if step != self._step:
            self._step, self._kept = step, []
            self._buffers.begin_step()
        else:
            self._buffers.check()
        self._audit.begin_pass(step)
        batch, position = loader.engine.batches.newest, -1
        is_logical = batch is not None and (loader.batch_weight or batch.repeats)
        # A pass that does not count has numbers of its own: it may come before the one that does.
        if batch is not None and is_logical and not self._worker.warming_up:
            position = batch.position
        self._numbers.begin_piece(loader.epoch, position)
        self._in_piece, self._checks = True, False

    def check_rates(self, optimizer: Any) -> None:
        engine, step = self._worker.loader.engine, self._reduction.step.number
        if not engine.batches.pieces_left and self._options.step != step:
            return  # the only pass
        rates: dict[str, float] = {}
        for one in with_inner(optimizer):
            rate: Any = getattr(one, "_learning_rate", None)
            if hasattr(rate, "numpy"):  # it is no schedule
                rates[f"learning rate of {one.name}"] = float(rate.numpy())
        self._options.check(step, rates, self._worker.step)

    def end_step(self) -> None:
        """Check, at the end of a step, that only edl has written the model's other variables."""
        if self._checks:
            self._buffers.check()
            self._checks = False

    def complete(
        self, gradients: Sequence[Any], without: Sequence[bool], variables: Sequence[Any]
    ) -> tuple[list[Any], bool]:
        """Keep gradients of a logical worker; with the last ones, return the means of the step.

        The second part of the answer is whether to apply the first, which else are the `gradients`.
        `without` says which of them mean nothing, as the variable has none.
        """
        loader = self._worker.loader
        self._end_piece(gradients, without, variables)
        if loader.engine.batches.pieces_left:
            if not loader.engine.batches.may_grow:
                loader.accumulate()
            return list(gradients), False
        found = self._reduction.complete(self._means)
        state = self._reduction.step.state
        if state is StepState.REDUCED:
            if found is None:  # this worker is alone
                agreed = self._reduction.part.agreed
                assert agreed is not None
                found = self._means(agreed)
            self._buffers.place(found[len(gradients) :])
            self._kept, self._checks = [], True
            self._numbers.end_step()
            means = []
            for name, mean, gradient, none in zip(
                self._names, found[: len(gradients)], gradients, without, strict=True
            ):
                if none is not (mean is None):
                    raise UsageError(NOT_IN_ALL.format(name=name))
                means.append(gradient if mean is None else tf.convert_to_tensor(mean))
            return means, True
        if self._reduction.done:  # others have completed the step, and this worker has their state
            self._kept = []
            self._numbers.end_step()
        return list(gradients), False

    def _end_piece(
        self, gradients: Sequence[Any], without: Sequence[bool], variables: Sequence[Any]
    ) -> None:
        loader = self._worker.loader
        self._in_piece = False
        self._check_numbers()
        weight = loader.batch_weight
        own = [
            None if none else _array(gradient)
            for gradient, none in zip(gradients, without, strict=True)
        ]
        self._names = [str(getattr(one, "path", one.name)) for one in variables]
        self._likes = [
            _TensorSpec(tuple(one.shape), np.dtype(tf.as_dtype(one.dtype).as_numpy_dtype))
            if values is None
            else _TensorSpec(values.shape, values.dtype)
            for values, one in zip(own, variables, strict=True)
        ]
        if weight:
            self._kept.append((own, weight / loader.progress.source.batching.micro_batch))
        after = self._buffers.end_piece(weight > 0)
        self._audit.end_pass(lambda: _digests(zip(self._value_names, [*own, *after], strict=True)))

    @property
    def _value_names(self) -> list[str]:
        return [*(f"the gradient of {name}" for name in self._names), *self._buffers.names]

    def _means(self, weights: Weights) -> list[Array | None]:
        """Return the means of all gradients, then of all buffers; None where there is none."""
        # What is kept stays as it is, for a further call in the next ring.
        loader = self._worker.loader
        source, engine = loader.progress.source, loader.engine
        total = weights.total or engine.batches.samples  # of a warm-up, which has no records
        pieces = logical_workers_of_step(source, engine.records, total)
        divisor = total / source.batching.micro_batch
        rows = [
            Summands(
                like,
                [(own[index], weight) for own, weight in self._kept if own[index] is not None],
                divisor,
            )
            for index, like in enumerate(self._likes)
        ]
        rows += self._buffers.summands(pieces)
        if weights.sends:
            self._reduction.sending()
        together = self._together if weights.sends else lambda alone, _: alone
        used = _arithmetic()
        alike = [
            (self._numbers.script % 2**53, SEEDS_DIFFER),
            (used.threads, THREADS_DIFFER),
            (used.checksum, used.why_instructions_differ),
        ]
        self._audit.compare(self._value_names, pieces, alike, together)
        with np.errstate(invalid="ignore", over="ignore"):  # of a gradient that is not finite
            return exact_means(rows, pieces, alike, ARRAYS, together)

    def _together(self, summed: Any, kind: str) -> Any:
        try:
            found = allreduce_of(np.asarray(summed, np.float64), kind)
        except CollectiveFailed as error:
            raise RingBroken(self._worker.generation, str(error)) from error
        return found.tolist() if isinstance(summed, list) else found

    def order(self) -> list[Any]:
        graph = tf.compat.v1.get_default_graph()
        for kind in drawing_kinds(graph.as_graph_def()):  # random operations with a state
            raise UsageError(REFUSED.format(drawing=f"a tf.function draws by {kind}"))
        names = {id(each.handle): name for name, each in self._variables().items()}
        outer = getattr(graph, "outer_graph", None)
        while isinstance(outer, FuncGraph):
            for captured, _ in outer.captures:
                if id(captured) in names:
                    raise UsageError(OUTSIDE.format(name=names[id(captured)]))
            outer = outer.outer_graph
        # All so far that may write a variable: TensorFlow orders operations on one, and not a call
        # of Python that writes it.
        return [each for each in graph.get_operations() if each.op_def.is_stateful]


def _digests(values: Iterable[tuple[str, Array | None]]) -> dict[str, int]:
    found = {name: of_array(each) for name, each in values if each is not None}
    return {name: digest for name, digest in found.items() if digest is not None}


def _array(tensor: Any) -> Array:
    """Return the value of an eager tensor as an array, without a copy if possible; do not write."""
    if "CPU" in tensor.backing_device:
        try:
            return np.asarray(memoryview(tensor))
        except (ValueError, BufferError):  # a type that no buffer has: bfloat16
            pass
    return np.asarray(tensor.numpy())


def _same(one: Array, other: Array) -> bool:
    """Return whether both have the same bits; it is known at once if they share their memory."""
    if one.__array_interface__["data"][0] == other.__array_interface__["data"][0]:
        return True
    return one.tobytes() == other.tobytes()


def _arithmetic() -> Arithmetic:
    asked = tf.config.threading.get_intra_op_parallelism_threads()
    return Arithmetic(int(asked) or len(os.sched_getaffinity(0)), _instructions())


@functools.cache
def _instructions() -> str:
    gpus = [
        tf.config.experimental.get_device_details(one).get("device_name", "a GPU")
        for one in tf.config.list_physical_devices("GPU")[:1]
    ]
    return ", ".join([of_onednn(environment()), *gpus])


def kinds_of(definition: Any) -> list[str]:
    functions = definition.library.function
    nodes = [*definition.node, *(node for each in functions for node in each.node_def)]
    return sorted({node.op for node in nodes})


def drawing_kinds(definition: Any) -> list[str]:
    """Return the kinds of random operations in a graph whose state cannot be set from outside."""
    found = []
    for kind in kinds_of(definition):
        known = op_def_registry.get(kind)
        is_seeded = known is not None and any(each.name == "seed2" for each in known.attr)
        if (is_seeded and known.is_stateful) or kind.startswith("Rng"):
            found.append(kind)
    return found
