"""Read records whose fields are rows of several arrays, in memory or in files.

Such an array is a *column*. Record i has row i of every column. A *part* of a data set is one file
with all columns, or one file of each column. :class:`ArrayDataset` is the data set;
``edl.data.arrays``, ``npy`` and ``npz`` make it of columns in memory (:class:`InMemory`) or in
files (:class:`Stored`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edl.data.dataset import Dataset, Fragment, as_rows
from edl.data.files import Readable
from edl.data.index import Integers
from edl.errors import DataError, UsageError

Array = npt.NDArray[Any]


class Rows(Protocol):
    """The interface of one column in one part of a data set: it reads rows by their numbers."""

    def take(self, rows: Integers) -> Array:
        """Return a new array of the rows with the numbers ``rows``, in that order.

        ``rows`` counts from 0 in the part. The result is in the machine's byte order.
        """


class InMemory:
    """A column that is an array in memory.

    Args:
        array: the array, in the machine's byte order; it is not copied.
    """

    def __init__(self, array: Array) -> None:
        self._array = array

    def take(self, rows: Integers) -> Array:
        """Return a new array of the rows with the numbers ``rows`` (from 0), in that order.

        It is in the machine's byte order.
        """
        return self._array[rows]


class Stored:
    """A column that lies in a file row after row, without compression, as it would in memory.

    Args:
        open_file: returns the file, open in this process; called in each :meth:`take`.
        offset: where the first row begins, in bytes from the beginning of the file.
        dtype: the type of the array's elements.
        row: the shape of a row.
    """

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

    def take(self, rows: Integers) -> Array:
        """Read the rows with the numbers ``rows`` from the file; return a new array of them.

        They are in the order of ``rows``, in the machine's byte order. Rows that follow each other
        in ``rows`` and in the file are read at once.

        Raises:
            DataError: if the file does not have these rows, cannot be read, or has changed.
        """
        taken = np.empty((len(rows), *self._row), self._dtype)
        if taken.nbytes:
            buffer = taken.reshape(-1).view(np.uint8).data
            file = self._open()
            for first, last in runs(rows):
                self._read(file, buffer, rows, first, last)
        return native(taken)

    def _read(
        self, file: Readable, buffer: memoryview, rows: Integers, first: int, last: int
    ) -> None:
        size = self._row_bytes
        file.read_into(buffer[first * size : last * size], self._offset + int(rows[first]) * size)


class ArrayDataset(Dataset[Any]):
    """A data set whose record i is row i of every column: a value, a tuple, or a dict.

    Args:
        kind: the kind of the data's files, such as ``npy``, for messages.
        parts: the parts of the data set, a file or several read side by side; in one part all
            columns have the same number of rows.
        columns: for each part its columns, in the order of ``names``; they may be missing for a
            part without records.
        names: the keys of the records, which are dicts then; None: a record is a row if there is
            one column, else a tuple of rows.
        parse: a function of a record that returns what the script sees; None: the record itself.
    """

    def __init__(
        self,
        kind: str,
        parts: Sequence[Fragment],
        columns: Sequence[Sequence[Rows]],
        names: Sequence[str] | None,
        parse: Callable[[Any], Any] | None,
    ) -> None:
        self._columns = [tuple(each) for each in columns]
        self._names = None if names is None else tuple(names)
        super().__init__(kind, parts, parse)

    def _read(self, part: int, rows: Sequence[int]) -> Sequence[Any]:
        wanted = as_rows(rows)
        taken = [column.take(wanted) for column in self._columns[part]]
        if self._names is not None:
            return [dict(zip(self._names, row, strict=True)) for row in zip(*taken, strict=True)]
        return list(taken[0]) if len(taken) == 1 else list(zip(*taken, strict=True))


def arrange(
    positional: Sequence[Any], named: Mapping[str, Any], function: str
) -> tuple[list[Any], tuple[str, ...] | None]:
    """Return the columns that a script gave to a function such as ``npy``, and their names.

    A column is whatever the script gave for it: an array, or the paths of its files.

    Args:
        positional: the columns that were given without names.
        named: the columns that were given with names, by name.
        function: the name of the function, such as ``edl.data.npy``, for the error message.

    Returns:
        The columns in order; and their names in the same order, or None if they have no names.

    Raises:
        UsageError: if there are no columns, or some with names and some without.
    """
    if bool(positional) == bool(named):
        raise UsageError(
            f"{function} takes arrays with names (records are dicts) or without (records are "
            f"tuples); it was given {len(positional)} without and {len(named)} with a name"
        )
    return (list(named.values()), tuple(named)) if named else (list(positional), None)


def check_array(what: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Check that an array has rows, and holds no Python objects, whose unpickling may run code.

    Args:
        what: the name of the array, for the error message.
        dtype: the type of the array's elements.
        shape: the shape of the array.

    Raises:
        DataError: if the array holds Python objects, or has no dimension.
    """
    if dtype.hasobject:
        raise DataError(
            f"{what} holds Python objects ({dtype}), which would have to be unpickled; store "
            "numbers or text of fixed width"
        )
    if not shape:
        raise DataError(f"{what} is a single value (0-d) and has no records; give it a dimension")


def check_lengths(lengths: Mapping[str, int]) -> None:
    """Check that all columns of a part have the same number of rows.

    Args:
        lengths: the number of rows of each column, by the column's name for the error message.

    Raises:
        DataError: if the numbers differ.
    """
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{what} has {rows}" for what, rows in lengths.items())
        raise DataError(f"arrays that are read side by side have as many rows each; {counts}")


RowType = tuple[str, tuple[int, ...]]  # type and shape of a row


def check_types(mine: Mapping[str, RowType], first: Mapping[str, RowType]) -> None:
    """Check that the rows of a part have the same types and shapes as those of the first part.

    Args:
        mine: the type and shape of each column's rows in the part, by the column's name for the
            error message.
        first: the type and shape of each column's rows in the first part, by name, with the columns
            in the same order as in ``mine``.

    Raises:
        DataError: if a column differs; the message names the first such column in both parts.
    """
    for (what, row), (other, theirs) in zip(mine.items(), first.items(), strict=True):
        if row != theirs:
            raise DataError(
                f"{what} has rows of type {row[0]} and shape {row[1]}, but {other} of type "
                f"{theirs[0]} and shape {theirs[1]}"
            )


def native(array: Array) -> Array:
    """Return ``array`` in the machine's byte order, the only one that the frameworks accept.

    It is ``array`` itself if it has that order, else a converted copy.
    """
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def row_bytes(dtype: np.dtype[Any], row: tuple[int, ...]) -> int:
    """Return the exact size of one row in bytes.

    The result is a Python integer, because a damaged header may claim more than 64 bits hold.

    Args:
        dtype: the type of the row's elements.
        row: the shape of the row.
    """
    return dtype.itemsize * math.prod(row)


def runs(rows: Integers) -> list[tuple[int, int]]:
    """Divide the row numbers ``rows`` into runs in which each number is the previous one plus 1.

    Returns:
        For each run in order a pair of indices in ``rows``: (of its first element, of its last
        element plus 1). For an empty ``rows``, one empty run (0, 0).
    """
    edges = [0, *(np.flatnonzero(np.diff(rows) != 1) + 1).tolist(), len(rows)]
    return list(pairwise(edges))
