"""Read columns of a data set (arrays, lists, tensors, files), with one value for each sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from edl.errors import DataError

Array = npt.NDArray[Any]
_TEXT = (str, bytes)
_NUMBER = (bool, int, float, complex, np.generic)


class Columns(Protocol):
    """A column of a data set: one value for each sample, read by the sample's position."""

    def __len__(self) -> int: ...

    def rows(self, positions: npt.NDArray[np.int64]) -> Array:
        """Return the values of the samples at ``positions``, stacked along a new first axis."""

    def row(self, position: int) -> Any:
        """Return the value of the sample at ``position``."""


class ArrayColumn:
    """A column whose values are an array in memory, one for each index of its first axis.

    Args:
        array: the array; text becomes an array of Python objects.

    Raises:
        DataError: the array is a single number, or TensorFlow has no type for its values.
    """

    def __init__(self, array: Array) -> None:
        if array.ndim == 0:
            raise DataError("a single number is no data set; its first axis must be the samples")
        if array.dtype.kind == "U":
            array = array.astype(object)
        if array.dtype.hasobject and not all(isinstance(one, _TEXT) for one in array.flat):
            odd = next(one for one in array.flat if not isinstance(one, _TEXT))
            raise DataError(
                f"a column has values of type {type(odd).__name__} among others, and TensorFlow "
                "has arrays of one type: numbers, or text. Fill in missing values, and give "
                "columns of different types one by one: edl.Dataset((dict(frame), labels))"
            )
        try:
            tf.as_dtype(array.dtype)
        except TypeError:
            raise DataError(
                f"TensorFlow has no type for a column of {array.dtype}; convert it to numbers or "
                "text before it is given to edl"
            ) from None
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    def rows(self, positions: npt.NDArray[np.int64]) -> Array:
        """Return the elements of the array at ``positions`` on the first axis, stacked."""
        found: Array = self._array[positions]
        return found

    def row(self, position: int) -> Any:
        """Return the element of the array at ``position`` on the first axis."""
        return self._array[position]


class LazyColumn:
    """A column whose rows are read from a file when they are needed, such as a data set of h5py.

    Args:
        rows: an object with ``shape``, whose first number counts the samples, and
            ``__getitem__(position)``.
    """

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return int(self._rows.shape[0])

    def rows(self, positions: npt.NDArray[np.int64]) -> Array:
        """Read the rows at ``positions`` one by one, and stack them along a new first axis."""
        return np.stack([self.row(position) for position in positions.tolist()])

    def row(self, position: int) -> Any:
        """Read the row at ``position`` and return it as an array."""
        return np.asarray(self._rows[position])


class ListColumn:
    """A column that is a list of Python values or arrays, one for each sample.

    The values may differ in shape if the data set has a collate function, which pads them.

    Args:
        values: the values, in the order of the samples.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def rows(self, positions: npt.NDArray[np.int64]) -> Array:
        """Return the values at ``positions``, stacked along a new first axis.

        Raises:
            DataError: the values have different shapes.
        """
        values = [np.asarray(self._values[position]) for position in positions.tolist()]
        if odd := [value.shape for value in values if value.shape != values[0].shape]:
            raise DataError(
                f"samples of the data set cannot be made one batch: one has shape "
                f"{values[0].shape} and one {odd[0]}; pad them to one length, or give edl.Dataset "
                "a collate_fn, where collate_fn(samples) returns the arrays of a batch"
            )
        stacked = np.stack(values)
        return stacked.astype(object) if stacked.dtype.kind == "U" else stacked

    def row(self, position: int) -> Any:
        """Return the value of the sample at ``position`` as it is in the list."""
        return self._values[position]


def structure_of(source: Any) -> Any:
    """Return ``source`` with a column in place of each array, in the same tuples and dicts.

    Args:
        source: what the script gave to ``edl.Dataset``.

    Returns:
        A column, or tuples and dicts of columns; None if ``source`` is a sequence of samples.

    Raises:
        DataError: some members of ``source`` can be columns, and another one cannot.
    """
    if isinstance(source, (tuple, dict)):
        parts = list(source.values()) if isinstance(source, dict) else list(source)
        if isinstance(source, dict) or any(_is_column(part) for part in parts):
            return _columns(source, _lengths(source))
        nested = [structure_of(part) for part in parts if isinstance(part, (tuple, dict))]
        is_nested = len(nested) == len(parts) > 0 and all(each is not None for each in nested)
        return _columns(source, _lengths(source)) if is_nested else None
    return None if isinstance(source, list) else column_of(source)


def column_of(part: Any) -> Columns | None:
    """Return ``part``, one member of a data set, as a column; None if it has no values by position.

    Raises:
        DataError: ``part`` is ragged or sparse, or TensorFlow has no type for its values.
    """
    if isinstance(part, (tf.RaggedTensor, tf.SparseTensor)) or hasattr(part, "toarray"):
        dense = "to_tensor()" if isinstance(part, tf.RaggedTensor) else "tf.sparse.to_dense"
        dense = "toarray()" if hasattr(part, "toarray") else dense
        raise DataError(
            f"edl.Dataset was given a {type(part).__name__}: make it an array ({dense}), or give a "
            "list with the values of each sample and a collate_fn, where collate_fn(samples) "
            "returns the arrays of a batch"
        )
    package = type(part).__module__.partition(".")[0]
    if package == "pandas" and hasattr(part, "to_numpy"):
        return _of_array(part.to_numpy())  # by position: an index of labels does not matter
    if package == "torch" and hasattr(part, "detach"):
        return ArrayColumn(np.asarray(part.detach().cpu()))
    if isinstance(part, (np.ndarray, tf.Tensor, tf.Variable)):
        return _of_array(np.asarray(part))
    if isinstance(getattr(part, "shape", None), tuple) and hasattr(part, "__getitem__"):
        return LazyColumn(part) if len(part.shape) else ArrayColumn(np.asarray(part))
    return None


def _of_array(array: Array) -> Columns:
    """Return ``array`` as a column with one value for each index of its first axis.

    An array of lists or arrays becomes a :class:`ListColumn`, any other an :class:`ArrayColumn`.
    """
    values = array.tolist() if array.dtype.hasobject and array.ndim == 1 else []
    if values and all(isinstance(value, (list, np.ndarray)) for value in values):
        return ListColumn(values)
    return ArrayColumn(array)


def _is_column(part: Any) -> bool:
    return isinstance(part, (list, range)) or column_of(part) is not None


def _lengths(source: Any) -> set[int]:
    """Return the lengths of all columns in ``source``, except those given as lists or ranges.

    ``source`` is a column, or tuples and dicts of columns.
    """
    if isinstance(source, (tuple, dict)):
        parts = source.values() if isinstance(source, dict) else source
        return set().union(*(_lengths(part) for part in parts))
    column = None if isinstance(source, (list, range)) else column_of(source)
    return set() if column is None else {len(column)}


def _columns(source: Any, lengths: set[int]) -> Any:
    """Return ``source`` with each of its members made a column, in the same structure.

    Args:
        source: a tuple, dict, list or column.
        lengths: the lengths of the data set's columns that are no lists; they tell whether a list
            of arrays holds the inputs of a model or the samples of one column.

    Raises:
        DataError: a member cannot be a column.
    """
    if isinstance(source, dict):
        return {key: _columns(part, lengths) for key, part in source.items()}
    if isinstance(source, tuple) and not _is_plain(source):
        return tuple(_columns(part, lengths) for part in source)
    if isinstance(source, list) and _is_inputs(source, lengths):
        return tuple(_columns(part, lengths) for part in source)
    if isinstance(source, (list, tuple, range)):
        values = list(source)
        return ArrayColumn(_plain_array(values)) if _is_plain(values) else ListColumn(values)
    column = column_of(source)
    if column is None:
        raise DataError(
            f"a part of the data set is a {type(source).__name__}, which is no column of one value "
            "for each sample; give arrays, lists, or data frames, leave out None, or give one "
            "object with __len__ and __getitem__(i), which returns one sample"
        )
    return column


def _is_plain(values: Sequence[Any]) -> bool:
    """Return whether ``values`` is a sequence of numbers and text only, and is not empty."""
    return len(values) > 0 and all(isinstance(value, (*_TEXT, *_NUMBER)) for value in values)


def _plain_array(values: list[Any]) -> Array:
    return np.array(values, dtype=object) if isinstance(values[0], _TEXT) else np.asarray(values)


def _is_inputs(values: list[Any], lengths: set[int]) -> bool:
    """Return whether the list ``values`` holds the inputs of a model, each a column of its own.

    If not, the list is one column, with a value for each sample. The list holds inputs if its
    arrays are as long as the other columns of the data set, or, without other columns, if the
    arrays are all equally long. ``lengths`` are those of the other columns.
    """
    if not values or not all(isinstance(value, (np.ndarray, tf.Tensor)) for value in values):
        return False
    if any(np.ndim(value) == 0 for value in values):
        return False
    own = {len(value) for value in values}
    return own == lengths if lengths else len(own) == 1
