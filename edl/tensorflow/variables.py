"""Name TensorFlow's variables the same on every worker, and read and write their values.

In TensorFlow 2 and Keras a variable holds its value; in a graph the session holds it.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from edl.binding.replica import ByteRange, few
from edl.errors import UsageError

Array = np.ndarray[Any, Any]

# Into how many groups a state in a session is cut, to be compared a group at a time. TensorFlow
# prepares the graph anew for each other list of fetches, and keeps the result. With 242 variables
# that took the training thread 90 to 106 ms of processor time, in each step until each of 500
# groups had had its turn; beside plain Horovod a step took 1.83 of its time.
SESSION_GROUPS = 8
BESIDE = "tf.train.Checkpoint"  # how the names of variables of one beside the model begin

UNKNOWN = (
    "beside the model the script trains {names}, and newcomers would not receive this; before the "
    "first batch call optimizer.build(variables) with all variables that the optimizer trains"
)


class VariableAccess(Protocol):
    """A way to read and write the values of variables of TensorFlow, not those of Keras."""

    def read(self, variables: Sequence[Any]) -> list[Array]:
        """Return the values of `variables`, in order."""

    def read_parts(self, parts: Sequence[ByteRange]) -> list[Array]:
        """Return the whole elements in byte ranges of variables, flat; until the next update."""

    def write(self, values: Sequence[tuple[Any, Array]]) -> None:
        """Assign the arrays to their variables."""


class EagerAccess:
    def read(self, variables: Sequence[Any]) -> list[Array]:
        with context.eager_mode():
            return [variable.numpy() for variable in variables]

    def read_parts(self, parts: Sequence[ByteRange]) -> list[Array]:
        with context.eager_mode():
            return [_read_part(part) for part in parts]

    def write(self, values: Sequence[tuple[Any, Array]]) -> None:
        with context.eager_mode():
            for variable, value in values:
                variable.assign(value)


def _read_part(part: ByteRange) -> Array:
    # Without a copy if possible; of a value on a GPU, only the range is copied.
    value: Any = part.value.read_value()
    size = value.dtype.size
    extent = slice(None) if part.is_whole else slice(part.start // size, part.stop // size)
    if "CPU" in value.backing_device:
        try:
            return np.asarray(memoryview(value)).reshape(-1)[extent]
        except ValueError:  # a type that no buffer has: bfloat16
            pass
    found: Array = tf.reshape(value, [-1])[extent].numpy()
    return found


class SessionAccess:
    def __init__(self, session: tf.compat.v1.Session) -> None:
        self._session = session

    def read(self, variables: Sequence[Any]) -> list[Array]:
        return [np.asarray(value) for value in self._run(list(variables))]

    def read_parts(self, parts: Sequence[ByteRange]) -> list[Array]:
        # As a whole, because no operation can be added to the graph for a part.
        read = self.read([part.value for part in parts])
        return [
            value.reshape(-1)[part.start // value.itemsize : part.stop // value.itemsize]
            for part, value in zip(parts, read, strict=True)
        ]

    def write(self, values: Sequence[tuple[Any, Array]]) -> None:
        # A variable's initializer assigns its second input; no operation is added to the graph,
        # which may be finalized. Several variables may have been made of one input.
        left = [(variable.initializer, value) for variable, value in values]
        while left:
            now, later = {}, []
            for operation, value in left:
                if operation.inputs[1].ref() in now:
                    later.append((operation, value))
                else:
                    now[operation.inputs[1].ref()] = operation, value
            fed = {operation.inputs[1]: value for operation, value in now.values()}
            self._run([operation for operation, _ in now.values()], fed)
            left = later

    def _run(self, fetches: Any, feed: Any = None) -> Any:
        # Not by `edl.Session.run`, which would begin a step of the job.
        return tf.compat.v1.Session.run(self._session, fetches, feed)


class SnapshotAccess(SessionAccess):
    """A `VariableAccess` to the values that variables had when their session closed."""

    def __init__(self, variables: Sequence[Any], session: SessionAccess) -> None:
        super().__init__(session._session)
        values = session.read(variables)
        self._values = {id(each): value for each, value in zip(variables, values, strict=True)}

    def read(self, variables: Sequence[Any]) -> list[Array]:
        return [self._values[id(variable)] for variable in variables]

    def write(self, values: Sequence[tuple[Any, Array]]) -> None:
        self._values |= {id(variable): value for variable, value in values}


class Created:
    """The variables that this script has created since `watch`, in order of creation."""

    def __init__(self) -> None:
        self._created: list[weakref.ref[Any]] = []
        self._checkpoints: list[weakref.ref[Any]] = []
        self._watching: Any = None

    def watch(self) -> None:
        if self._watching is None:
            self._watching = tf.variable_creator_scope(self._create)
            self._watching.__enter__()
            plain_init = tf.train.Checkpoint.__init__

            @functools.wraps(plain_init)
            def init(checkpoint: Any, *arguments: Any, **named: Any) -> None:
                plain_init(checkpoint, *arguments, **named)
                self._checkpoints.append(weakref.ref(checkpoint))

            tf.train.Checkpoint.__init__ = init

    def _create(self, creator: Any, **arguments: Any) -> Any:
        variable = creator(**arguments)
        self._created.append(weakref.ref(variable))
        return variable

    def alive(self) -> list[Any]:
        return [variable for ref in self._created if (variable := ref()) is not None]

    def in_checkpoints(self) -> dict[str, Any]:
        alive = [checkpoint for ref in self._checkpoints if (checkpoint := ref()) is not None]
        return {
            f"{BESIDE}{number}/{name}": value
            for number, checkpoint in enumerate(alive)
            for name, value in sorted(vars(checkpoint).items())
            if isinstance(value, tf.Variable)
        }


CREATED = Created()


def plain(variable: Any) -> Any:
    """Return the TensorFlow variable that a Keras variable holds; any other as it is."""
    return variable.value if hasattr(variable, "overwrite_with_gradient") else variable


def check_known(variables: Iterable[Any], known: Iterable[Any]) -> None:
    shared = {id(plain(variable)) for variable in known}
    unknown = [str(getattr(v, "path", v.name)) for v in variables if id(plain(v)) not in shared]
    if unknown:
        raise UsageError(UNKNOWN.format(names=few(unknown)))


def variables_by_name(variables: Iterable[Any], prefix: str = "") -> dict[str, Any]:
    """Return TensorFlow's variables by path (Keras) or name; equal names get #2, #3 and so on."""
    found: dict[str, Any] = {}
    times: dict[str, int] = {}
    for variable in variables:
        name = prefix + str(getattr(variable, "path", variable.name))
        times[name] = times.get(name, 0) + 1
        found[name if times[name] == 1 else f"{name}#{times[name]}"] = plain(variable)
    return found


def variables_of(thing: Any) -> list[Any] | None:
    """Return the variables of `thing`, empty if not built; None: it is of a kind that has none."""
    if isinstance(plain(thing), tf.Variable):
        return [thing]
    found = getattr(thing, "variables", None)
    if found is not None and not callable(found):
        return list(found)
    if isinstance(thing, (list, tuple)) and all(
        isinstance(plain(each), tf.Variable) for each in thing
    ):
        return list(thing)
    return None


def differences(mine: Mapping[str, Any], theirs: Mapping[str, Array]) -> list[str]:
    odd = [f"only one has {name}" for name in sorted(mine.keys() ^ theirs.keys())]
    return odd or [
        f"{name} has shape {theirs[name].shape} there and {tuple(mine[name].shape)} here"
        for name in sorted(mine)
        if tuple(mine[name].shape) != theirs[name].shape
    ]


def array_of(value: Any) -> Array | None:
    """Return `value` as a numpy array; None if it is no eager tensor, variable or numpy value."""
    if isinstance(value, (tf.Tensor, tf.Variable)):
        value = value.numpy()
    return np.asarray(value) if isinstance(value, (np.ndarray, np.generic)) else None


def tensor_array_of(value: Any) -> Array | None:
    """Return `value` as `array_of` does; None also if TensorFlow lacks its type."""
    # TensorFlow has no dates, texts of a fixed length, records, nor numbers in another byte order,
    # and a masked array would lose its mask.
    array = None if isinstance(value, np.ma.MaskedArray) else array_of(value)
    if array is None or array.dtype.hasobject:
        return None
    try:
        return array if dtype_of(array.dtype.name) == array.dtype else None
    except TypeError:
        return None


def bytes_of(array: Array) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def dtype_of(name: str) -> Any:
    return tf.as_dtype(name).as_numpy_dtype
