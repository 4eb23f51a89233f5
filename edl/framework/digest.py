"""Compute checksums of the parts of a training state, to compare the state between workers.

The digests are CRC-32: cheap, and different when a bit, or the order of the values, is different.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from edl.core.step.state_check import Extent, StateGroup, extents

PLAIN = (bool, int, float, complex, str, bytes, type(None))
PLAIN_BYTES = 8  # what a number or a text counts for, whatever it is


def places(state: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the name, the container and the key of each value in nested containers.

    The container at the place is a dict, list or tuple, and ``container[key]`` is the value. Names
    are made of the keys on the way, such as ``optimizer.0.weight.exp_avg``.

    Args:
        state: a dict, list or tuple, which may hold others.
        prefix: what each name begins with.
    """
    for key, value in state.items() if isinstance(state, dict) else enumerate(state):
        name = f"{prefix}{key}"
        if isinstance(value, (dict, list, tuple)):
            yield from places(value, f"{name}.")
        else:
            yield name, state, key


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The bytes from ``start`` to ``stop`` of one named value in a state.

    Attributes:
        name: the name of the value, as :func:`places` gives it.
        value: the whole value: an array, or a plain Python value.
        start: the first byte of the range, counted in the value.
        stop: the byte after the range.
        is_whole: whether the range is the whole value.
    """

    name: str
    value: Any
    start: int
    stop: int
    is_whole: bool


class StateArrays:
    """A list of all values in a state, from which one group of bytes is read at a time.

    To list the state again for each group would cost more than the digest of a group. So the state
    is listed for group 0, and again for a group that has values other than arrays, because such
    values change by being replaced. An array is looked up in its container each time.

    Args:
        state: a function that returns the containers of the state.
        size_of: a function that returns the size of an array in bytes; None for a value that is no
            array.
    """

    def __init__(
        self, state: Callable[[], dict[str, Any]], size_of: Callable[[Any], int | None]
    ) -> None:
        self._state, self._size_of = state, size_of
        self._places: list[tuple[str, Any, Any]] = []  # name, container, key
        self._sizes: list[int | None] = []
        self._ends: list[int] = []
        self._is_listed = False

    def forget(self) -> None:
        """List the state anew for the next group. All workers must call this at the same point."""
        self._is_listed = False

    def within(self, group: StateGroup) -> list[ByteRange]:
        """Return the parts of the state that belong to ``group``, with their present values."""
        listed = self._is_listed and group.index > 0
        if not listed or any(self._sizes[e.part] is None for e in extents(self._ends, group)):
            self._list()
        try:
            return [self._part(extent) for extent in extents(self._ends, group)]
        except LookupError:  # the script has taken something away, as all of them have
            self._list()
            return [self._part(extent) for extent in extents(self._ends, group)]

    def _part(self, extent: Extent) -> ByteRange:
        name, container, key = self._places[extent.part]
        size = self._ends[extent.part] - (self._ends[extent.part - 1] if extent.part else 0)
        is_whole = extent.stop - extent.start == size
        return ByteRange(name, container[key], extent.start, extent.stop, is_whole)

    def _list(self) -> None:
        self._places = [*places(self._state())]
        self._sizes = [self._size_of(container[key]) for _, container, key in self._places]
        least = (PLAIN_BYTES if size is None else max(1, size) for size in self._sizes)
        self._ends = [*accumulate(least)]
        self._is_listed = True


def of_bytes(kind: str, data: Any) -> int:
    """Return a digest of a buffer.

    Args:
        kind: mixed into the digest, so that equal bytes of different kinds of value differ.
        data: the buffer.
    """
    return zlib.crc32(data, zlib.crc32(kind.encode()))


def of_array(array: np.ndarray[Any, Any], start: int = 0, stop: int | None = None) -> int | None:
    """Return a digest of an array's bytes from ``start`` to ``stop``; None if it holds objects.

    The type and the shape of the array enter the digest, too.
    """
    if array.dtype.hasobject:
        return None
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return of_bytes(f"{array.dtype} {array.shape}", data[start:stop])


def of_value(value: Any, start: int = 0, stop: int | None = None) -> int | None:
    """Return a digest of any value; None if values of its type cannot be compared.

    Args:
        value: a NumPy array or scalar, or a plain Python value (see :data:`PLAIN`).
        start: the first byte of a NumPy array that enters; of no effect for other values.
        stop: the byte after the last one of a NumPy array that enters; None: the end.
    """
    if isinstance(value, np.ndarray):
        return of_array(value, start, stop)
    if isinstance(value, np.generic):
        return of_array(np.asarray(value))
    return of_bytes("value", repr(value).encode()) if isinstance(value, PLAIN) else None
