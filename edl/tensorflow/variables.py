"""Name TensorFlow's variables the same on every worker, and read and write their values.

In TensorFlow 2 and Keras a variable holds its value; in a graph the session holds it.
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


class VariableAccess(Protocol):
    """A way to read and write the values of variables: eagerly, or in a session."""

    def read(self, variables: Sequence[Any]) -> list[Array]:
        """Return the values of ``variables`` as arrays, in order."""

    def read_parts(self, parts: Sequence[ByteRange]) -> list[Array]:
        """Return the elements of variables in the byte ranges ``parts``, a flat array for each.

        Each array has the type of its variable.
        """

    def write(self, values: Sequence[tuple[Any, Array]]) -> None:
        """Assign the arrays to the variables in ``values``, pairs of (variable, array)."""


class EagerAccess:
    """A :class:`VariableAccess` for TensorFlow 2 and Keras, whose variables hold their values."""

    def read(self, variables: Sequence[Any]) -> list[Array]:
        """Return the values of ``variables`` as arrays, in order."""
        with context.eager_mode():
            return [variable.numpy() for variable in variables]

    def read_parts(self, parts: Sequence[ByteRange]) -> list[Array]:
        """Return the elements of variables in the byte ranges ``parts``, a flat array for each.

        Use the arrays before the next update: values in main memory are not copied if that can be
        avoided. Of a value on a device such as a GPU, only the range is copied.
        """
        with context.eager_mode():
            return [_read_part(part) for part in parts]

    def write(self, values: Sequence[tuple[Any, Array]]) -> None:
        """Assign the arrays to the variables in ``values``, pairs of (variable, array)."""
        with context.eager_mode():
            for variable, value in values:
                variable.assign(value)


def _read_part(part: ByteRange) -> Array:
    """Return the elements of a variable in the byte range ``part``, without a copy if possible.

    The array is flat, and has the type of the variable.
    """
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
    """A :class:`VariableAccess` for variables of a graph, whose values are in a session.

    Args:
        session: the session.
    """

    def __init__(self, session: tf.compat.v1.Session) -> None:
        self._session = session

    def read(self, variables: Sequence[Any]) -> list[Array]:
        """Fetch the values of ``variables`` from the session, in order."""
        return [np.asarray(value) for value in self._run(list(variables))]

    def read_parts(self, parts: Sequence[ByteRange]) -> list[Array]:
        """Return the elements of variables in the byte ranges ``parts``, a flat array for each.

        Each variable is fetched as a whole, because no operation can be added to the graph for a
        part.
        """
        read = self.read([part.value for part in parts])
        return [
            value.reshape(-1)[part.start // value.itemsize : part.stop // value.itemsize]
            for part, value in zip(parts, read, strict=True)
        ]

    def write(self, values: Sequence[tuple[Any, Array]]) -> None:
        """Assign the arrays to the variables in ``values``, pairs of (variable, array).

        The array is fed into the variable's initializer, because no operation can be added to the
        graph.
        """
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
        """Run ``fetches`` in the session by TensorFlow's own method, so that no step begins.

        ``feed`` is the ``feed_dict`` of the run; None: nothing is fed.
        """
        return tf.compat.v1.Session.run(self._session, fetches, feed)


class Created:
    """The variables that this script has created since :meth:`watch`, in order of creation.

    Only weak references are kept.
    """

    def __init__(self) -> None:
        self._created: list[weakref.ref[Any]] = []
        self._watching: Any = None

    def watch(self) -> None:
        """Begin to record the variables that the script creates, for the rest of the process."""
        if self._watching is None:
            self._watching = tf.variable_creator_scope(self._create)
            self._watching.__enter__()

    def _create(self, creator: Any, **arguments: Any) -> Any:
        """Create a variable by TensorFlow's ``creator``, record it and return it.

        ``arguments`` are those of the creator.
        """
        variable = creator(**arguments)
        self._created.append(weakref.ref(variable))
        return variable

    def alive(self) -> list[Any]:
        """Return the recorded variables that still exist, in the order of creation."""
        return [variable for ref in self._created if (variable := ref()) is not None]


CREATED = Created()


def plain(variable: Any) -> Any:
    """Return the TensorFlow variable that a Keras variable holds.

    A ``variable`` that is none of Keras' is returned as it is.
    """
    return variable.value if hasattr(variable, "overwrite_with_gradient") else variable


def variables_by_name(variables: Iterable[Any], prefix: str = "") -> dict[str, Any]:
    """Return ``variables`` by path (Keras) or name, with ``prefix`` before it.

    Keras variables are replaced by the TensorFlow variables that they hold. If several variables
    have the same name, ``#2`` is added to the name of the second, ``#3`` to the third, and so on.
    """
    found: dict[str, Any] = {}
    times: dict[str, int] = {}
    for variable in variables:
        name = prefix + str(getattr(variable, "path", variable.name))
        times[name] = times.get(name, 0) + 1
        found[name if times[name] == 1 else f"{name}#{times[name]}"] = plain(variable)
    return found


def variables_of(thing: Any) -> list[Any] | None:
    """Return the variables of ``thing``; None if it is of a kind that has none.

    ``thing`` is a variable of TensorFlow or Keras, a Keras model or layer, a ``tf.Module``, a list
    or tuple of variables, or anything else.
    """
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
    """Return phrases about the differences between a script's variables and those of a state.

    Args:
        mine: the script's variables, by name.
        theirs: the arrays of the state, by name.

    Returns:
        Names that only one of the two has, or else shapes that differ; empty if they fit.
    """
    odd = [f"only one has {name}" for name in sorted(mine.keys() ^ theirs.keys())]
    return odd or [
        f"{name} has shape {theirs[name].shape} there and {tuple(mine[name].shape)} here"
        for name in sorted(mine)
        if tuple(mine[name].shape) != theirs[name].shape
    ]
