"""A state with arrays on its way through the ring; see :mod:`edl.framework.state`."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from edl.errors import RingBroken
from edl.framework.state import Reference, map_leaves, pieces, references
from edl.ring.ring import CollectiveFailed, Ring
from edl.tensorflow.collectives import broadcast_array
from edl.tensorflow.variables import Array


def exchange(
    ring: Ring,
    root: int,
    state: Any,
    keep: bool,
    dumps: Callable[[Any], bytes] = pickle.dumps,
) -> Any:
    """The ``state`` of the rank ``root`` on all others that ``keep`` it.

    None on the root and on who does not keep it. ``state`` is None on all but the root.
    ``dumps`` pickles it, without its arrays.

    Raises:
        RingBroken: a worker is gone.
    """
    arrays: list[Array] = []
    sending = ring.place.rank == root
    mine = dumps(_describe(state, arrays)) if sending else b""
    description = pickle.loads(ring.broadcast(mine, root, "edl.state"))
    try:
        received = _broadcast(references(description), arrays if sending else None, root, keep)
    except CollectiveFailed as error:
        raise RingBroken(ring.generation, str(error)) from error
    return _fill(description, received) if keep else None


def _describe(state: Any, arrays: list[Array]) -> Any:
    """``state`` with each array moved to ``arrays`` and a reference in its place."""

    def leaf(value: Any, _where: str) -> Any:
        array = array_of(value)
        if array is None:
            return value
        arrays.append(array)
        return Reference(len(arrays) - 1, array.shape, array.dtype.name, array.nbytes)

    return map_leaves(state, leaf)


def _fill(description: Any, arrays: dict[int, Array]) -> Any:
    """The inverse of :func:`_describe`."""

    def leaf(value: Any, _where: str) -> Any:
        if not isinstance(value, Reference):
            return value
        return arrays.get(value.index, np.empty(value.shape, dtype_of(value.dtype)))

    return map_leaves(description, leaf)


def _broadcast(
    sent: list[Reference], arrays: list[Array] | None, root: int, keep: bool
) -> dict[int, Array]:
    """Send ``arrays``, or take part; returns those received by index, if they are to be kept."""
    received: dict[int, Array] = {}
    for piece in pieces(sent):
        if arrays is not None:
            parts = [bytes_of(arrays[reference.index]) for reference in piece]
            flat = parts[0] if len(parts) == 1 else np.concatenate(parts)
        else:
            flat = np.empty(sum(reference.size for reference in piece), np.uint8)
        flat = broadcast_array(flat, root)
        start = 0
        for reference in piece if keep else ():
            stop = start + reference.size
            own = flat[start:stop].copy()  # a view must be aligned to its type
            received[reference.index] = own.view(dtype_of(reference.dtype)).reshape(reference.shape)
            start = stop
    return received


def array_of(value: Any) -> Array | None:
    """The value as an array, None when it is none."""
    if isinstance(value, (tf.Tensor, tf.Variable)):
        value = value.numpy()
    return np.asarray(value) if isinstance(value, (np.ndarray, np.generic)) else None


def bytes_of(array: Array) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of an array."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def dtype_of(name: str) -> Any:
    """The type of that name, as numpy has it; bfloat16, too."""
    return tf.as_dtype(name).as_numpy_dtype
