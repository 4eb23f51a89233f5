"""Compute checksums (digests) of the parts of a training state, to compare workers with each other.

A digest is a CRC-32. It costs little time, and it changes if one bit or the order of the values
does. :class:`StateArrays` cuts a state into pieces, each a :class:`ByteRange`; :func:`of_value`
computes the digest of one.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from edl.core.step.state_check import Extent, StateGroup, coarser, extents

PLAIN = (bool, int, float, complex, str, bytes, type(None))
PLAIN_BYTES = 8  # what a number or a text counts for, whatever it is


def places(state: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield for each value in nested containers a tuple: (its name, its container, its key)."""
    for key, value in state.items() if isinstance(state, dict) else enumerate(state):
        name = f"{prefix}{key}"
        if isinstance(value, (dict, list, tuple)):
            yield from places(value, f"{name}.")
        else:
            yield name, state, key


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The bytes from `start` to before `stop` of one named value in a training state."""

    name: str  # as `places` yields it
    value: Any  # all of it, not only the range: an array, or a plain Python value
    start: int
    stop: int  # not in the range; a value that is no array counts as 8 bytes
    is_whole: bool


class StateArrays:
    """A list of all values in a training state, to read one group of its bytes at a time."""

    def __init__(
        self, state: Callable[[], dict[str, Any]], size_of: Callable[[Any], int | None]
    ) -> None:
        self.most_groups: int | None = None  # into which the state may be cut; None: any number
        self._state, self._size_of = state, size_of
        self._places: list[tuple[str, Any, Any]] = []  # name, container, key
        self._sizes: list[int | None] = []
        self._ends: list[int] = []
        self._is_listed = False

    def forget(self) -> None:
        """Drop the list, so the next `within` lists the state's values anew."""
        # All must call this between the same two steps, or they cut the state differently.
        self._is_listed = False

    def within(self, group: StateGroup) -> list[ByteRange]:
        """Return the byte ranges of the state that belong to `group`, with the present values."""
        larger = coarser(group, self.most_groups)
        return [] if larger is None else self._within(larger)  # None: no larger group is due

    def _within(self, group: StateGroup) -> list[ByteRange]:
        # To list the values each time would cost more than the digests: arrays are listed once.
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
    """Return the digest of a buffer; equal bytes of another kind have another."""
    return zlib.crc32(data, zlib.crc32(kind.encode()))


def of_array(array: np.ndarray[Any, Any], start: int = 0, stop: int | None = None) -> int | None:
    """Return the digest of a part of an array's bytes; None if the array holds Python objects."""
    if array.dtype.hasobject:
        return None
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return of_bytes(f"{array.dtype} {array.shape}", data[start:stop])


def of_value(value: Any, start: int = 0, stop: int | None = None) -> int | None:
    """Return the digest of a value of a training state; None if its type is not compared."""
    if isinstance(value, np.ndarray):
        return of_array(value, start, stop)
    if isinstance(value, np.generic):
        return of_array(np.asarray(value))
    return of_bytes("value", repr(value).encode()) if isinstance(value, PLAIN) else None
