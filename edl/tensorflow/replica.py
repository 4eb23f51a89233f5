"""Hold the state that all workers of a TensorFlow job share: :class:`TensorFlowReplica`.

This module reads and writes it as numpy arrays, by the path of a variable. How a state is sent,
saved and compared is the same for all frameworks (:mod:`edl.framework.replica`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl.checkpoint.safetensors import Blob
from edl.errors import CheckpointError, UsageError
from edl.framework.digest import ByteRange
from edl.framework.replica import FrameworkReplica
from edl.framework.state import Trackable, few, map_leaves
from edl.tensorflow.digest import digests, size_of
from edl.tensorflow.random_numbers import is_seed
from edl.tensorflow.transfer import TensorFlowArrays, bytes_of, dtype_of, tensor_array_of
from edl.tensorflow.variables import (
    BESIDE,
    CREATED,
    SESSION_GROUPS,
    Array,
    EagerAccess,
    SessionAccess,
    SnapshotAccess,
    VariableAccess,
    differences,
    plain,
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
    """The variables and tracked objects of this process, which all workers of the job share.

    The first ``edl.Optimizer`` of a script makes it. None of the functions takes arguments; each is
    called whenever its values are needed, because a script may create variables late.

    Args:
        kind: the name of the optimizer's class, which a checkpoint records.
        model: a function that returns the list of the model's variables.
        optimizer: a function that returns the list of the optimizer's variables, the learning rate
            among them; an empty list for an optimizer of TensorFlow 1, whose variables ``model``
            returns.
        optimizer_state: a function that returns the list of the optimizer's variables, also for an
            optimizer of TensorFlow 1.
        updated: a function that returns the list of those variables of ``model`` that an update
            changes.
        rates: a function that returns the list of the learning rates, as numbers, that each
            ``edl.LRSchedule`` had in the last update; no variable holds them.
        present: a function that returns a dict of all present learning rates, numbers or variables,
            by a name for messages.
        models: a function that returns the models of Keras that are trained.

    Attributes:
        access: reads and writes the values of variables: eagerly at first; once a session of
            TensorFlow 1 takes part in the job, in that session.
    """

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
        self._model = model
        self._optimizer_state = optimizer_state
        self._optimizer = optimizer
        self._updated = updated
        self._rates = rates
        self._present = present
        self._models = models
        self.access: VariableAccess = EagerAccess()

    def use_session(self, session: tf.compat.v1.Session) -> None:
        """Read and write the variables in ``session`` from now on; it holds their values."""
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
        """Raise UsageError if one of ``objects`` cannot be tracked.

        An object can be tracked if it has variables, or both ``state_dict()`` and
        ``load_state_dict()``. ``objects`` are the objects that the script asks to track, by name.
        """
        for name, thing in objects.items():
            if not isinstance(thing, Trackable) and variables_of(thing) is None:
                raise UsageError(
                    f"edl.track({name}=...): a {type(thing).__name__} has neither variables nor "
                    "state_dict() and load_state_dict()"
                )

    def things(self) -> dict[str, Trackable]:
        """Return the tracked objects that are sent by their ``state_dict()``, by name.

        Objects with variables are left out, as their variables are sent with those of the model.
        """
        return {name: x for name, x in self._tracked.items() if variables_of(x) is None}

    def objects_from_gradients(self) -> Mapping[str, Trackable]:
        """Return the tracked objects, by name, that a script may change by a step's gradients.

        These are all tracked objects but those without variables whose attribute ``edl_compared``
        is False. An object with variables is replaced by one whose ``state_dict()`` returns the
        list of their values, and whose ``load_state_dict()`` writes them.
        """
        tracked = {name: variables_of(thing) for name, thing in self._tracked.items()}
        values = {name: _Values(self.access, own) for name, own in tracked.items() if own}
        return {**self.compared_things(), **values}

    def variables(self) -> dict[str, dict[str, Any]]:
        """Return the variables of the model and those of the optimizer, by name.

        A name is the variable's path (Keras) or its name in TensorFlow. The variables of a tracked
        object count as the model's, with the object's name and a slash before theirs. An optimizer
        that has no variables yet creates them in this call.

        Returns:
            A dict with the keys "model" and "optimizer"; each value is a dict of variables by name.

        Raises:
            UsageError: the model has no variables (yet).
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
        """Return the shape of each shared variable as text, such as "(3, 4)".

        The keys are "model/" or "optimizer/" and the variable's name.
        """
        groups = self.variables()
        return {
            f"{group}/{name}": str(tuple(variable.shape))
            for group, variables in groups.items()
            for name, variable in variables.items()
            if not name.startswith(BESIDE)  # a script may make one later, and not before it joins
        }

    def state(self) -> dict[str, Any]:
        """Return the present values of all shared variables, and the states of tracked objects.

        Returns:
            A dict with "model" and "optimizer", dicts of arrays by the name of the variable, and
            "tracked", the result of ``state_dict()`` of each tracked object without variables, by
            the object's name. The variables of other tracked objects are in "model".
        """
        groups = self.variables()
        flat = [variable for group in groups.values() for variable in group.values()]
        values = iter(self.access.read(flat))
        state: dict[str, Any] = {
            group: {name: next(values) for name in variables} for group, variables in groups.items()
        }
        state["tracked"] = self.states_of_things()
        return state

    def compared(self) -> dict[str, Any]:
        """Return the values that must be equal on all workers, to compare them.

        Left out are variables that no update trains, such as the averages of batch normalisation
        (each worker has its own), and tracked objects without variables whose ``edl_compared`` is
        False.

        Returns:
            A dict of groups, each of which is a dict: "model" has the model's trainable variables
            by name, "optimizer" the optimizer's variables by name, "learning_rate" the rate of the
            last update by the number of the ``edl.LRSchedule``, from 0. "tracked.<name>" has the
            variables of a tracked object by name (of a ``tf.Module`` the trainable ones), "tracked"
            the results of ``state_dict()`` of other tracked objects by name.
        """
        groups: dict[str, Any] = {
            "model": variables_by_name(v for v in self._model() if v.trainable)
        }
        groups["optimizer"] = variables_by_name(self._optimizer_state())
        groups["learning_rate"] = dict(enumerate(self._rates()))
        for name, thing in self._tracked.items():
            own = variables_of(thing) or []
            if isinstance(thing, tf.Module):
                own = [variable for variable in own if variable.trainable]
            groups[f"tracked.{name}"] = variables_by_name(own)
        things = self.compared_things()
        return {**groups, "tracked": {name: thing.state_dict() for name, thing in things.items()}}

    def durable(self) -> dict[str, Any]:
        """Return what a checkpoint stores, with variables whose values are not read yet.

        It has the keys of :meth:`state`, and "optimizer_kind", the name of the optimizer's class.
        """
        return {
            **self.variables(),
            "tracked": self.states_of_things(),
            "optimizer_kind": self._kind,
        }

    def equal_on_all(self, state: dict[str, Any]) -> Iterable[Any]:
        """Return the variables in ``state`` that updates train, and those of optimizers' states.

        They are the objects in ``state`` themselves. ``state`` is the result of :meth:`durable`.
        """
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
        """Write ``means`` into what :meth:`averages` has read, in the same order."""
        pairs = zip(self._averages(), means, strict=True)
        self.access.write([(v, mean.astype(v.dtype.as_numpy_dtype)) for v, mean in pairs])

    def learning_rates(self) -> dict[str, float]:
        """Return the present learning rates as numbers, by name.

        The name is "learning rate", or "learning rate of optimizer 0" and so on if there are
        several. An optimizer whose rate is unknown (a schedule of Keras in a graph) has no entry.
        """
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
        """Return a digest (CRC-32) of each of ``parts``, by the part's name, to compare workers.

        Args:
            parts: ranges of bytes of the values that :meth:`compared` returns. Parts of values of
                other types than arrays, numbers and text are left out of the result.
        """
        return digests(self.access, parts)

    def rehearse(self) -> None:
        """Do on a newcomer what it will do when all workers wait for it; change nothing.

        It is for a session. It reads the variables, writes them and computes their digests. The
        first time takes far longer than the next (measured with 242 variables: a write 0.6 s of
        processor time, and 0.01 s), because TensorFlow prepares a part of the graph for it. Nothing
        happens if a variable has no value yet.
        """
        groups = self.variables().values()
        written = [v for group in groups for name, v in group.items() if not is_seed(name)]
        with contextlib.suppress(tf.errors.FailedPreconditionError):
            self.access.write(list(zip(written, self.access.read(written), strict=True)))
            self.digests()

    def load(self, state: dict[str, Any], receive: Receive) -> None:
        """Write ``state``, or a part of it, into the variables and tracked objects.

        The variables in which Keras' layers keep their random seeds are never written.

        Args:
            state: a state as :meth:`state` returns it.
            receive: how much to write. ``Receive.STEP``, for a worker that has missed a step: the
                variables that the step's update has changed, no learning rate and no tracked
                object. ``Receive.RESYNC``: all variables, and the tracked objects that workers
                compare. Any other value: all variables and tracked objects.

        Raises:
            UsageError: the state has other variables, shapes or tracked objects than this script.
        """
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
        """Return a copy of ``state``, for checkpoints, in which each array is a blob.

        A blob (:class:`edl.checkpoint.safetensors.Blob`) holds a copy of an array's bytes, its type
        and its shape. In place of a variable there is a blob of its value; all variables are read
        at once. Arrays of a type that TensorFlow lacks are copied as arrays. All other values are
        not copied.
        """
        leaves: list[Any] = []
        map_leaves(state, lambda value, _: leaves.append(value))
        values = iter(self.access.read([leaf for leaf in leaves if isinstance(leaf, tf.Variable)]))

        def blob(value: Any, _where: str) -> Any:
            return _to_blob(next(values) if isinstance(value, tf.Variable) else value)

        return map_leaves(state, blob)

    def uncopied(self, state: Any) -> dict[str, Any]:
        """Return a copy of ``state``, which :meth:`copied` has made, with arrays in place of blobs.

        The arrays are read-only views of the blobs' bytes.

        Raises:
            CheckpointError: an array has a type that this TensorFlow does not know.
        """
        found: dict[str, Any] = map_leaves(state, _from_blob)
        return found


class _Values:
    """An object whose ``state_dict()`` returns the values of given variables.

    It stands for a tracked object that has variables.

    Args:
        access: how the values are read and written: eagerly, or in a session.
        variables: the variables, of TensorFlow or Keras.
    """

    def __init__(self, access: VariableAccess, variables: Sequence[Any]) -> None:
        self._access, self._variables = access, [plain(variable) for variable in variables]

    def state_dict(self) -> list[Array]:
        """Return the values of the variables as arrays, in the order of the variables."""
        return self._access.read(self._variables)

    def load_state_dict(self, state: list[Array]) -> None:
        """Write ``state``, a list of one array for each variable, to the variables, in order."""
        self._access.write(list(zip(self._variables, state, strict=True)))


def _to_blob(value: Any) -> Any:
    """Return ``value`` as a blob for a checkpoint, with a copy of its bytes, if it is an array.

    A blob holds the bytes, type and shape of an array. An array of a type that TensorFlow lacks is
    returned as a copy, which has its type in the file by NumPy's name, or is refused there. Any
    other value is returned as it is.

    Args:
        value: one value of a state, no container.
    """
    array = tensor_array_of(value)
    if array is None:
        return value.copy() if isinstance(value, np.ndarray) else value
    return Blob(KIND, array.dtype.name, array.shape, bytes_of(array.copy()).data)


def _from_blob(value: Any, where: str) -> Any:
    """Return the array that a blob of a checkpoint holds, as a view of the blob's bytes.

    A blob holds the bytes, type and shape of an array. A ``value`` that is no blob is returned as
    it is.

    Args:
        value: one value of a state, no container.
        where: the path of ``value`` in the state, for the error's message.

    Raises:
        CheckpointError: this TensorFlow does not know the type of the array.
    """
    if not isinstance(value, Blob):
        return value
    try:
        return np.frombuffer(value.data, dtype=dtype_of(value.dtype)).reshape(value.shape)
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"{where} is a {value.kind} array of {value.dtype}, which this TensorFlow does not know"
        ) from error
