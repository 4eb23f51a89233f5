"""Read and write the state that all workers of a TensorFlow job share, as arrays by variable.

How a state is sent, saved and compared is the same for all frameworks
(:mod:`edl.binding.replica`).
"""

from __future__ import annotations

import contextlib
import os
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.random.seed_generator import SeedGenerator, global_seed_generator
from tensorflow.python.eager import context

from edl.binding.loop import KEPT
from edl.binding.replica import ByteRange, FrameworkReplica, Trackable, few, map_leaves, of_value
from edl.checkpoint.location import location
from edl.checkpoint.safetensors import Blob
from edl.checkpoint.weights import weights
from edl.errors import CheckpointError, UsageError
from edl.step.source import derived_seed
from edl.tensorflow.collectives import TensorFlowArrays
from edl.tensorflow.variables import (
    BESIDE,
    CREATED,
    SESSION_GROUPS,
    Array,
    EagerAccess,
    SessionAccess,
    SnapshotAccess,
    VariableAccess,
    array_of,
    bytes_of,
    differences,
    dtype_of,
    plain,
    tensor_array_of,
    variables_by_name,
    variables_of,
)
from edl.worker.progress import Receive
from edl.worker.worker import Worker


def size_of(value: Any) -> int | None:
    if isinstance(value, tf.Variable):
        elements = value.shape.num_elements()
        return None if elements is None else elements * value.dtype.base_dtype.size
    return value.nbytes if isinstance(value, np.ndarray) else None


def digests(access: VariableAccess, parts: Iterable[ByteRange]) -> dict[str, int]:
    variables: list[ByteRange] = []
    others: list[ByteRange] = []
    for part in parts:
        (variables if isinstance(part.value, tf.Variable) else others).append(part)
    values = zip(variables, access.read_parts(variables), strict=True)
    found = {part.name: of_value(value) for part, value in values}
    for part in others:
        array = array_of(part.value)
        value = part.value if array is None else array
        found[part.name] = of_value(value, part.start, part.stop)
    return {name: digest for name, digest in found.items() if digest is not None}


def load_weights(path: str | os.PathLike[str], model: Any = None) -> dict[str, Array]:
    """Return the weights in a checkpoint, as arrays by the path or name of their variable.

    No job is needed. Do not write to the arrays. The variables of tracked objects are among them;
    those of the optimizer are not.

    Args:
        path: a checkpoint, a directory with checkpoints (the intact one of the highest step is
            taken), or a file of ``edl checkpoint export``.
        model: a model, layer or module that has its variables already. The weights are also written
            to them; weights that it has no variable for are only returned. None: all are only
            returned.

    Raises:
        CheckpointError: there is no intact file, or it lacks a variable of the model or has it in
            another shape; the model is then unchanged.
        UsageError: the model has no variables (yet).
    """
    found = {
        name: np.frombuffer(blob.data, dtype=dtype_of(blob.dtype)).reshape(blob.shape)
        for name, blob in weights(location(path)).items()
    }
    if model is not None:
        mine = variables_by_name(variables_of(model) or [])
        if not mine:
            raise UsageError("the model has no variables yet; build it before edl.load_weights")
        if missing := [f"{name} is not there" for name in mine if name not in found]:
            raise CheckpointError(
                f"{path} is of another model: {few(missing)}; it has {few(list(found))}. Keras "
                "numbers the layers that it names itself, as they are made in a process: give the "
                "layers a name, in both scripts, or make the models in the same order"
            )
        if odd := differences(mine, {name: found[name] for name in mine}):
            raise CheckpointError(f"{path} is of another model: {few(odd)}")
        EagerAccess().write([(variable, found[name]) for name, variable in mine.items()])
    return found


# ------------------------------------------------------------
# Seed the random generators of TensorFlow and Keras, so that no two workers draw the same numbers.
#
# `loop` decides when. Keras' layers (Dropout, GaussianNoise, augmentation) keep their seed in a
# variable. That variable is no part of the job's state: a newcomer with the seed of another worker
# would draw the same numbers.

SHARED = "global_seed_generator"  # the name of Keras' attribute for that of keras.random
SEED_STATE = "seed_generator_state"  # the name of a layer's variable for its seed


def is_seed(name: str) -> bool:
    """Return whether a variable, by its name in `variables_by_name`, has a Keras layer's seed."""
    return name.partition("#")[0].rpartition("/")[2].partition(":")[0] == SEED_STATE


def last_seed() -> int:
    return int(context.global_seed() or 0)  # 0: none was set


def set_global_seed(seed: int) -> None:
    """Set the seed of TensorFlow's next eager operations to one that none was made with."""
    # `tf.random.set_seed` also drops what TensorFlow has prepared to run each `tf.function`. To
    # prepare it again took 7 to 12 s for a Keras model of 60 residual blocks on two cores: when a
    # newcomer joins, all workers would wait for it. Operations that are kept, in a `tf.function` or
    # of an earlier seed, go on with their sequences.
    now = context.context()
    now._seed, now._rng = seed, random.Random(seed)


class Seeder:
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
        now = context.context()
        now._seed, now._rng = saved
        if self._shared is not None:
            vars(self._shared).pop("next", None)

    def seed_between(self, seed: int) -> None:
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
        if self.seed is not None:
            with tf.init_scope():
                self.state.assign(seed_state(self.seed, self.state))
            self.seed = None
        return super().next(ordered)


def seed_state(seed: int, state: Any) -> Any:
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


KIND = "tensorflow"
AVERAGES = ("moving_mean", "moving_variance")  # of BatchNormalization

NO_VARIABLES = (
    "edl knows no variables of the model{name}: build it before training begins, and name it: "
    "edl.Optimizer(optimizer, model)"
)


class TensorFlowReplica(FrameworkReplica):
    framework = "tensorflow"
    arrays = TensorFlowArrays()
    misfits = (*FrameworkReplica.misfits, tf.errors.OpError)

    def __init__(
        self,
        kind: str,
        model: Callable[[], list[Any]],
        optimizer: Callable[[], list[Any]],
        optimizer_state: Callable[[], list[Any]],
        updated: Callable[[], list[Any]],
        rates: Callable[[], list[float]] = list,
        present: Callable[[], dict[str, Any]] = dict,
        models: Callable[[], list[Any]] = list,
    ) -> None:
        super().__init__(kind)
        # Functions, because a script may create variables late.
        self._model, self._optimizer_state = model, optimizer_state
        self._optimizer = optimizer  # none of TensorFlow 1, whose variables are the model's
        self._updated = updated  # those of the model that an update changes
        self._rates = rates  # of each LRSchedule in the last update; no variable holds them
        self._present = present  # by a name for messages
        self._models = models
        self.access: VariableAccess = EagerAccess()

    def use_session(self, session: tf.compat.v1.Session) -> None:
        self.access = SessionAccess(session)
        self._parts.most_groups = SESSION_GROUPS

    def keep_values(self) -> None:
        """Keep the values that the session holds, before it closes, for the end of the script."""
        if type(self.access) is SessionAccess:
            rates = [rate for rate in self._present().values() if isinstance(rate, tf.Variable)]
            shared = [*self.variables()["model"].values(), *self._optimizer_state(), *rates]
            self.access = SnapshotAccess(shared, self.access)

    @staticmethod
    def check(objects: Mapping[str, Any]) -> None:
        for name, thing in objects.items():
            if not isinstance(thing, Trackable) and variables_of(thing) is None:
                raise UsageError(
                    f"edl.track({name}=...): a {type(thing).__name__} has neither variables nor "
                    "state_dict() and load_state_dict()"
                )

    def things(self) -> dict[str, Trackable]:
        return {name: x for name, x in self._tracked.items() if variables_of(x) is None}

    def objects_from_gradients(self) -> Mapping[str, Trackable]:
        tracked = {name: variables_of(thing) for name, thing in self._tracked.items()}
        values = {name: _Values(self.access, own) for name, own in tracked.items() if own}
        return {**self.compared_things(), **values}

    def variables(self) -> dict[str, dict[str, Any]]:
        """Return the variables of "model" and "optimizer", which may create its own here, by name.

        The variables of a tracked object are the model's, with its name and a slash before theirs.
        """
        optimizer = self._optimizer()
        model = variables_by_name(self._model())
        for name, thing in self._tracked.items():
            model |= variables_by_name(variables_of(thing) or [], f"{name}/")
        if not model:
            raise UsageError(NO_VARIABLES.format(name=""))
        known = {id(each) for each in (*model.values(), *map(plain, optimizer))}
        model |= {n: v for n, v in CREATED.in_checkpoints().items() if id(v) not in known}
        return {"model": model, "optimizer": variables_by_name(optimizer)}

    def shapes(self) -> dict[str, str]:
        groups = self.variables()
        return {
            f"{group}/{name}": str(tuple(variable.shape))
            for group, variables in groups.items()
            for name, variable in variables.items()
            if not name.startswith(BESIDE)  # a script may make one later, and not before it joins
        }

    def state(self) -> dict[str, Any]:
        groups = self.variables()
        flat = [variable for group in groups.values() for variable in group.values()]
        values = iter(self.access.read(flat))
        state: dict[str, Any] = {
            group: {name: next(values) for name in variables} for group, variables in groups.items()
        }
        state["tracked"] = self.states_of_things()
        return state

    def compared(self) -> dict[str, Any]:
        groups: dict[str, Any] = {
            "model": variables_by_name(v for v in self._model() if v.trainable)
        }
        groups["optimizer"] = variables_by_name(self._optimizer_state())
        groups["learning_rate"] = dict(enumerate(self._rates()))
        for name, thing in self._tracked.items():
            own = variables_of(thing) or []
            if isinstance(thing, tf.Module):  # what no update trains is each worker's own
                own = [variable for variable in own if variable.trainable]
            groups[f"tracked.{name}"] = variables_by_name(own)
        things = self.compared_things()
        return {**groups, "tracked": {name: thing.state_dict() for name, thing in things.items()}}

    def durable(self) -> dict[str, Any]:
        return {
            **self.variables(),
            "tracked": self.states_of_things(),
            "optimizer_kind": self._kind,
        }

    def equal_on_all(self, state: dict[str, Any]) -> Iterable[Any]:
        trained = [variable for variable in self._model() if variable.trainable]
        equal = {id(plain(variable)) for variable in (*trained, *self._optimizer_state())}
        variables = (*state["model"].values(), *state["optimizer"].values())
        return [variable for variable in variables if id(variable) in equal]

    def _averages(self) -> list[Any]:
        tracked = [v for thing in self._tracked.values() for v in variables_of(thing) or []]
        named = variables_by_name([*self._model(), *tracked]).items()
        found = {id(v): v for name, v in named if re.split("[#:]", name)[0].endswith(AVERAGES)}
        return list(found.values())

    def averages(self) -> list[np.ndarray[Any, Any]]:
        return [value.astype(np.float64) for value in self.access.read(self._averages())]

    def set_averages(self, means: Sequence[Array]) -> None:
        pairs = zip(self._averages(), means, strict=True)
        self.access.write([(v, mean.astype(v.dtype.as_numpy_dtype)) for v, mean in pairs])

    def learning_rates(self) -> dict[str, float]:
        present = self._present()
        variables = {name: rate for name, rate in present.items() if isinstance(rate, tf.Variable)}
        read = dict(zip(variables, self.access.read([*variables.values()]), strict=True))
        return {name: float(rate) for name, rate in (present | read).items()}

    size_of = staticmethod(size_of)

    def buffers(self) -> dict[str, Any]:
        if not isinstance(self.access, EagerAccess):
            return {}
        return variables_by_name(
            variable
            for model in self._models()
            for layer in model._flatten_layers()
            if not isinstance(layer, keras.layers.BatchNormalization)
            for variable in layer._non_trainable_variables
        )

    def digested(self, parts: Iterable[ByteRange]) -> dict[str, int]:
        return digests(self.access, parts)

    def rehearse(self) -> None:
        """Do in a newcomer's session what it will do when all wait for it; change nothing."""
        # The first time takes far longer than the next (measured with 242 variables: a write 0.6 s
        # of processor time, and 0.01 s), because TensorFlow prepares a part of the graph for it.
        groups = self.variables().values()
        written = [v for group in groups for name, v in group.items() if not is_seed(name)]
        with contextlib.suppress(tf.errors.FailedPreconditionError):  # a variable has no value yet
            self.access.write(list(zip(written, self.access.read(written), strict=True)))
            self.digests()

    def load(self, state: dict[str, Any], receive: Receive) -> None:
        """Write `state`, or the part of it that `receive` names, but for random seeds."""
        values: list[tuple[Any, Array]] = []
        groups = self.variables()
        updated = {id(plain(variable)) for variable in self._updated()}
        for group, all_mine in groups.items():
            theirs = state[group]
            mine = {n: v for n, v in all_mine.items() if n in theirs or not n.startswith(BESIDE)}
            theirs = {n: v for n, v in theirs.items() if n in mine or not n.startswith(BESIDE)}
            if odd := differences(mine, theirs):
                raise UsageError(f"this worker's {group} differs from the job's: {few(odd)}")
            for name, variable in mine.items():
                # All else belongs to the script's place in its loop: what this script does with
                # the learning rate or with averages of the weights is yet to come.
                if group == "optimizer":
                    changed = not name.partition("#")[0].endswith("/learning_rate")
                else:
                    changed = id(variable) in updated
                if (changed or receive is not Receive.STEP) and not is_seed(name):
                    values.append((variable, theirs[name]))
        self.access.write(values)
        if receive is not Receive.STEP:
            self.load_things(state["tracked"], receive)

    def copied(self, state: dict[str, Any]) -> Any:
        leaves: list[Any] = []
        map_leaves(state, lambda value, _: leaves.append(value))
        values = iter(self.access.read([leaf for leaf in leaves if isinstance(leaf, tf.Variable)]))

        def blob(value: Any, _where: str) -> Any:
            value = next(values) if isinstance(value, tf.Variable) else value
            array = tensor_array_of(value)
            if array is None:  # the file has a type that TensorFlow lacks by NumPy's name
                return value.copy() if isinstance(value, np.ndarray) else value
            return Blob(KIND, array.dtype.name, array.shape, bytes_of(array.copy()).data)

        return map_leaves(state, blob)

    def uncopied(self, state: Any) -> dict[str, Any]:

        def leaf(value: Any, where: str) -> Any:
            if not isinstance(value, Blob):
                return value
            try:
                return np.frombuffer(value.data, dtype=dtype_of(value.dtype)).reshape(value.shape)
            except (TypeError, ValueError) as error:
                raise CheckpointError(
                    f"{where} is a {value.kind} array of {value.dtype}, which this TensorFlow does "
                    "not know"
                ) from error

        found: dict[str, Any] = map_leaves(state, leaf)
        return found


class _Values:
    """A stand-in for a tracked object with variables, whose values are its state."""

    def __init__(self, access: VariableAccess, variables: Sequence[Any]) -> None:
        self._access, self._variables = access, [plain(variable) for variable in variables]

    def state_dict(self) -> list[Array]:
        return self._access.read(self._variables)

    def load_state_dict(self, state: list[Array]) -> None:
        self._access.write(list(zip(self._variables, state, strict=True)))
