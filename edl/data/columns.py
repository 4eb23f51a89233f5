"""Read records whose fields are rows of several arrays, in memory (:func:`arrays`) or in files.

Such an array is a *column*. Record i has row i of every column. A *part* of a data set is one file
with all columns, or one file of each column. :class:`ArrayDataset` is the data set; its columns are
arrays, or :class:`Stored` in files (``edl.data.npy``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from edl.data.dataset import Dataset, Fragment, as_rows
from edl.data.files import Integers, Readable
from edl.errors import DataError, UsageError

Array = npt.NDArray[Any]


class Stored:
    """A column that lies in a file row after row, without compression, as it would in memory."""

    def __init__(
        self,
        open_file: Callable[[], Readable],
        offset: int,
        dtype: np.dtype[Any],
        row: tuple[int, ...],
    ) -> None:
        self._open = open_file
        self._offset = offset
        self._dtype = dtype
        self._row = row
        self._row_bytes = row_bytes(dtype, row)

    def __getitem__(self, rows: Integers) -> Array:
        taken = np.empty((len(rows), *self._row), self._dtype)
        if taken.nbytes:
            buffer = taken.reshape(-1).view(np.uint8).data
            file, size = self._open(), self._row_bytes
            for first, last in runs(rows):
                begin = self._offset + int(rows[first]) * size
                file.read_into(buffer[first * size : last * size], begin)
        return native(taken)


Column = Array | Stored  # its rows by their numbers, in the machine's byte order: column[numbers]


class ArrayDataset(Dataset[Any]):
    """A data set whose record i is row i of every column: a value, a tuple, or a dict."""

    def __init__(
        self,
        kind: str,
        parts: Sequence[Fragment],
        columns: Sequence[Sequence[Column]],
        names: Sequence[str] | None,
        parse: Callable[[Any], Any] | None,
    ) -> None:
        self._columns = [tuple(each) for each in columns]
        self._names = None if names is None else tuple(names)
        super().__init__(kind, parts, parse)

    def _read(self, part: int, rows: Sequence[int]) -> Sequence[Any]:
        wanted = as_rows(rows)
        taken = [column[wanted] for column in self._columns[part]]
        if self._names is not None:
            return [dict(zip(self._names, row, strict=True)) for row in zip(*taken, strict=True)]
        return list(taken[0]) if len(taken) == 1 else list(zip(*taken, strict=True))


def arrays(
    *positional: Any, parse: Callable[[Any], Any] | None = None, **named: Any
) -> Dataset[Any]:
    """Return a data set of arrays in memory, whose record i is row i of each array.

    The records of ``arrays(x=x, y=y)`` are dicts, those of ``arrays(x, y)`` tuples, and those of
    ``arrays(x)`` rows. NumPy arrays in the machine's byte order are not copied, so later changes of
    them show. Only the types and shapes of the arrays enter the data set's fingerprint, not their
    contents.

    Args:
        *positional: the arrays (or what ``numpy.asarray`` takes), if they have no names.
        parse: a function of a record that returns what the script sees; None: the record itself.
        **named: the arrays by name.

    Raises:
        DataError: if an argument is no array, holds Python objects or has no dimension, or if the
            lengths differ.
        UsageError: if there is no array, or some have names and some have none.
    """
    given, names = arrange(positional, named, "edl.data.arrays")
    whats = [f"array {name!r}" for name in names or range(len(given))]
    try:
        found = [np.asarray(each) for each in given]
    except (ValueError, TypeError, RuntimeError) as error:  # a tensor says by it what to call
        raise DataError(f"edl.data.arrays was given something that is no array: {error}") from error
    for what, array in zip(whats, found, strict=True):
        check_array(what, array.dtype, array.shape)
    check_lengths({what: len(array) for what, array in zip(whats, found, strict=True)})
    about = repr([(array.dtype.str, array.shape) for array in found])
    part = Fragment(
        name=",".join(names or ()),
        size=sum(array.nbytes for array in found),
        count=len(found[0]),
        digest=google_crc32c.value(about.encode()),
    )
    return ArrayDataset("array", [part], [[native(array) for array in found]], names, parse)


def arrange(
    positional: Sequence[Any], named: Mapping[str, Any], function: str
) -> tuple[list[Any], tuple[str, ...] | None]:
    """Return the columns that a script gave to a function such as `npy`, and their names."""
    if bool(positional) == bool(named):
        raise UsageError(
            f"{function} takes arrays with names (records are dicts) or without (records are "
            f"tuples); it was given {len(positional)} without and {len(named)} with a name"
        )
    return (list(named.values()), tuple(named)) if named else (list(positional), None)


def check_array(what: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Check that an array has rows, and holds no Python objects, whose unpickling may run code."""
    if dtype.hasobject:
        raise DataError(
            f"{what} holds Python objects ({dtype}), which would have to be unpickled; store "
            "numbers or text of fixed width"
        )
    if not shape:
        raise DataError(f"{what} is a single value (0-d) and has no records; give it a dimension")


def check_lengths(lengths: Mapping[str, int]) -> None:
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{what} has {rows}" for what, rows in lengths.items())
        raise DataError(f"arrays that are read side by side have as many rows each; {counts}")


RowType = tuple[str, tuple[int, ...]]  # type and shape of a row


def check_types(mine: Mapping[str, RowType], first: Mapping[str, RowType]) -> None:
    for (what, row), (other, theirs) in zip(mine.items(), first.items(), strict=True):
        if row != theirs:
            raise DataError(
                f"{what} has rows of type {row[0]} and shape {row[1]}, but {other} of type "
                f"{theirs[0]} and shape {theirs[1]}"
            )


def native(array: Array) -> Array:
    """Return `array` in the machine's byte order, the only one that the frameworks accept."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def row_bytes(dtype: np.dtype[Any], row: tuple[int, ...]) -> int:
    # In Python's integers: a damaged header may claim more than 64 bits hold.
    return dtype.itemsize * math.prod(row)


def runs(rows: Integers) -> list[tuple[int, int]]:
    """Divide the row numbers `rows` into runs in which each number is the previous one plus 1."""
    edges = [0, *(np.flatnonzero(np.diff(rows) != 1) + 1).tolist(), len(rows)]
    return list(pairwise(edges))
