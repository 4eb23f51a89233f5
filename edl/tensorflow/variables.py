"""TensorFlow's variables under names that are the same on every worker, read and written.

In TensorFlow 2 and Keras a variable holds its value; in a graph the session does.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from edl.framework.digest import ByteRange

Array = np.ndarray[Any, Any]


class Access(Protocol):
    """Reads and writes the values of variables."""

    def read(self, variables: Sequence[Any]) -> list[Array]: ...

    def read_parts(self, parts: Sequence[ByteRange]) -> list[Array]:
        """The bytes of each variable that a part names, as an array of its type."""

    def write(self, values: Sequence[tuple[Any, Array]]) -> None: ...


class EagerAccess:
    """The variables hold their values."""

    def read(self, variables: Sequence[Any]) -> list[Array]:
        with context.eager_mode():
            return [variable.numpy() for variable in variables]

    def read_parts(self, parts: Sequence[ByteRange]) -> list[Array]:
        """As they are in memory, to be read at once; from a device no more comes than the part."""
        with context.eager_mode():
            return [_read_part(part) for part in parts]

    def write(self, values: Sequence[tuple[Any, Array]]) -> None:
        with context.eager_mode():
            for variable, value in values:
                variable.assign(value)


def _read_part(part: ByteRange) -> Array:
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
    """The values of a graph's variables in a session."""

    def __init__(self, session: tf.compat.v1.Session) -> None:
        self._session = session

    def read(self, variables: Sequence[Any]) -> list[Array]:
        return [np.asarray(value) for value in self._run(list(variables))]

    def read_parts(self, parts: Sequence[ByteRange]) -> list[Array]:
        """No operation can be added to the graph for a part, so all of a variable is fetched."""
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
        return tf.compat.v1.Session.run(self._session, fetches, feed)


class Created:
    """The variables that this script has created since :meth:`watch`, in order of creation."""

    def __init__(self) -> None:
        self._created: list[weakref.ref[Any]] = []
        self._watching: Any = None

    def watch(self) -> None:
        """From now on; for the rest of the process."""
        if self._watching is None:
            self._watching = tf.variable_creator_scope(self._create)
            self._watching.__enter__()

    def _create(self, creator: Any, **arguments: Any) -> Any:
        variable = creator(**arguments)
        self._created.append(weakref.ref(variable))
        return variable

    def alive(self) -> list[Any]:
        return [variable for ref in self._created if (variable := ref()) is not None]


CREATED = Created()


def plain(variable: Any) -> Any:
    """The TensorFlow variable that a Keras variable holds."""
    return variable.value if hasattr(variable, "overwrite_with_gradient") else variable


def named(variables: Iterable[Any], prefix: str = "") -> dict[str, Any]:
    """Variables by path (Keras) or name; the second of a name is told apart by its number."""
    found: dict[str, Any] = {}
    times: dict[str, int] = {}
    for variable in variables:
        name = prefix + str(getattr(variable, "path", variable.name))
        times[name] = times.get(name, 0) + 1
        found[name if times[name] == 1 else f"{name}#{times[name]}"] = plain(variable)
    return found


def variables_of(thing: Any) -> list[Any] | None:
    """The variables of a Keras model or layer, a ``tf.Module``, an iterable; None: it has none."""
    if isinstance(thing, tf.Variable):
        return [thing]
    found = getattr(thing, "variables", None)
    if found is not None and not callable(found):
        return list(found)
    if isinstance(thing, (list, tuple)) and all(isinstance(each, tf.Variable) for each in thing):
        return list(thing)
    return None


def differences(mine: Mapping[str, Any], theirs: Mapping[str, Array]) -> list[str]:
    """In what this script's variables are others than those of a state; empty when they fit."""
    odd = [f"only one has {name}" for name in sorted(mine.keys() ^ theirs.keys())]
    return odd or [
        f"{name} has shape {theirs[name].shape} there and {tuple(mine[name].shape)} here"
        for name in sorted(mine)
        if tuple(mine[name].shape) != theirs[name].shape
    ]
