"""Digests of the parts of a state: cheap, and different when a bit or the order of values is."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from edl.core.step.state_check import Extent, Group, extents

PLAIN = (bool, int, float, complex, str, bytes, type(None))
PLAIN_BYTES = 8  # what a number or a text counts for, whatever it is


def places(state: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where all is that a container and those in it hold: a name, the container, the key.

    Names are such as ``optimizer.0.weight.exp_avg``.
    """
    for key, value in state.items() if isinstance(state, dict) else enumerate(state):
        name = f"{prefix}{key}"
        if isinstance(value, (dict, list, tuple)):
            yield from places(value, f"{name}.")
        else:
            yield name, state, key


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The bytes from ``start`` to ``stop`` of something in a state."""

    name: str
    value: Any
    start: int
    stop: int
    is_whole: bool


class StateArrays:
    """What a state has in its containers, to be read a group at a time.

    To list a state again for each group would cost more than the digest of one. So it is listed
    for group 0, and again where a group has other things than arrays, which change by being
    replaced; an array is looked up in its container each time.

    Args:
        state: makes the containers of a state.
        size_of: the bytes of an array; None: the value is none.
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
        """List the state anew for the next group; all workers, at the same point."""
        self._is_listed = False

    def within(self, group: Group) -> list[ByteRange]:
        """What belongs to ``group``, read now."""
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
    """A digest of a buffer; ``kind`` keeps equal bytes of different things apart."""
    return zlib.crc32(data, zlib.crc32(kind.encode()))


def of_array(array: np.ndarray[Any, Any], start: int = 0, stop: int | None = None) -> int | None:
    """A digest of an array's bits, of those bytes; None: it holds objects."""
    if array.dtype.hasobject:
        return None
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return of_bytes(f"{array.dtype} {array.shape}", data[start:stop])


def of_value(value: Any, start: int = 0, stop: int | None = None) -> int | None:
    """A digest of anything else; None: nobody knows when two of its kind are equal.

    Of an array, the bytes from ``start`` to ``stop``.
    """
    if isinstance(value, np.ndarray):
        return of_array(value, start, stop)
    if isinstance(value, np.generic):
        return of_array(np.asarray(value))
    return of_bytes("value", repr(value).encode()) if isinstance(value, PLAIN) else None
