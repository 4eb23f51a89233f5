"""Read and write the state that all workers of a TensorFlow job share, as arrays by variable.

How a state is sent, saved and compared is the same for all frameworks
(:mod:`edl.binding.replica`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl.binding.replica import ByteRange, FrameworkReplica, Trackable, few, map_leaves
from edl.checkpoint.safetensors import Blob
from edl.errors import CheckpointError, UsageError
from edl.tensorflow.digest import digests, size_of
from edl.tensorflow.random_numbers import is_seed
from edl.tensorflow.variables import (
    BESIDE,
    CREATED,
    SESSION_GROUPS,
    Array,
    EagerAccess,
    SessionAccess,
    SnapshotAccess,
    TensorFlowArrays,
    VariableAccess,
    bytes_of,
    differences,
    dtype_of,
    plain,
    tensor_array_of,
    variables_by_name,
    variables_of,
)
from edl.worker.progress import Receive

KIND = "tensorflow"
AVERAGES = ("moving_mean", "moving_variance")  # of BatchNormalization
NO_VARIABLES = (
    "edl knows no variables of the model{name}: build it before training begins, and name it: "
    "edl.Optimizer(optimizer, model)"
)


class TensorFlowReplica(FrameworkReplica):
    """The variables and tracked objects of this process, which all workers of the job share."""

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
        self._model = model
        self._optimizer_state = optimizer_state
        self._optimizer = optimizer  # none of TensorFlow 1, whose variables are the model's
        self._updated = updated  # those of the model that an update changes
        self._rates = rates  # of each LRSchedule in the last update; no variable holds them
        self._present = present  # by a name for messages
        self._models = models
        self.access: VariableAccess = EagerAccess()

    def use_session(self, session: tf.compat.v1.Session) -> None:
        """Read and write the variables in `session` from now on; it holds their values."""
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
        """Return the tracked objects that are sent by their `state_dict()`, by name."""
        return {name: x for name, x in self._tracked.items() if variables_of(x) is None}

    def objects_from_gradients(self) -> Mapping[str, Trackable]:
        """Return the tracked objects, by name, that a script may change by a step's gradients."""
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
        """Return the shape of each shared variable as text, such as "(3, 4)"."""
        groups = self.variables()
        return {
            f"{group}/{name}": str(tuple(variable.shape))
            for group, variables in groups.items()
            for name, variable in variables.items()
            if not name.startswith(BESIDE)  # a script may make one later, and not before it joins
        }

    def state(self) -> dict[str, Any]:
        """Return the present values of all shared variables, and the states of tracked objects."""
        groups = self.variables()
        flat = [variable for group in groups.values() for variable in group.values()]
        values = iter(self.access.read(flat))
        state: dict[str, Any] = {
            group: {name: next(values) for name in variables} for group, variables in groups.items()
        }
        state["tracked"] = self.states_of_things()
        return state

    def compared(self) -> dict[str, Any]:
        """Return the values that must be equal on all workers, in groups by name."""
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
        """Return what a checkpoint stores, with variables whose values are not read yet."""
        return {
            **self.variables(),
            "tracked": self.states_of_things(),
            "optimizer_kind": self._kind,
        }

    def equal_on_all(self, state: dict[str, Any]) -> Iterable[Any]:
        """Return the objects in a `durable()` that updates train, and optimizers' states."""
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
        """Return the moving averages of BatchNormalization, in models and tracked objects."""
        return [value.astype(np.float64) for value in self.access.read(self._averages())]

    def set_averages(self, means: Sequence[Array]) -> None:
        """Write `means` into what `averages` has read, in the same order."""
        pairs = zip(self._averages(), means, strict=True)
        self.access.write([(v, mean.astype(v.dtype.as_numpy_dtype)) for v, mean in pairs])

    def learning_rates(self) -> dict[str, float]:
        present = self._present()
        variables = {name: rate for name, rate in present.items() if isinstance(rate, tf.Variable)}
        read = dict(zip(variables, self.access.read([*variables.values()]), strict=True))
        return {name: float(rate) for name, rate in (present | read).items()}

    size_of = staticmethod(size_of)

    def buffers(self) -> dict[str, Any]:
        """Return what Keras' layers set themselves, without averages of batch normalisation."""
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
        """Return a digest (CRC-32) of each of `parts`, by the part's name, to compare workers."""
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
        """Return a copy for checkpoints, in which each array and variable is a blob."""
        leaves: list[Any] = []
        map_leaves(state, lambda value, _: leaves.append(value))
        values = iter(self.access.read([leaf for leaf in leaves if isinstance(leaf, tf.Variable)]))

        def blob(value: Any, _where: str) -> Any:
            return _to_blob(next(values) if isinstance(value, tf.Variable) else value)

        return map_leaves(state, blob)

    def uncopied(self, state: Any) -> dict[str, Any]:
        """Return what `copied` has made with arrays, views of their bytes, in place of blobs."""
        found: dict[str, Any] = map_leaves(state, _from_blob)
        return found


class _Values:
    """A stand-in for a tracked object with variables, whose values are its state."""

    def __init__(self, access: VariableAccess, variables: Sequence[Any]) -> None:
        self._access, self._variables = access, [plain(variable) for variable in variables]

    def state_dict(self) -> list[Array]:
        return self._access.read(self._variables)

    def load_state_dict(self, state: list[Array]) -> None:
        self._access.write(list(zip(self._variables, state, strict=True)))


def _to_blob(value: Any) -> Any:
    """Return `value` as a blob for a checkpoint, with a copy of its bytes, if it is an array."""
    array = tensor_array_of(value)
    if array is None:  # the file has a type that TensorFlow lacks by NumPy's name, or refuses it
        return value.copy() if isinstance(value, np.ndarray) else value
    return Blob(KIND, array.dtype.name, array.shape, bytes_of(array.copy()).data)


def _from_blob(value: Any, where: str) -> Any:
    if not isinstance(value, Blob):
        return value
    try:
        return np.frombuffer(value.data, dtype=dtype_of(value.dtype)).reshape(value.shape)
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"{where} is a {value.kind} array of {value.dtype}, which this TensorFlow does not know"
        ) from error
