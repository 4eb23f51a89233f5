"""Read the samples of a script's data source, and form the arrays of a batch from them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from edl.data.stream import ShardReader
from edl.errors import DataError
from edl.step.engine import Batch

# ------------------------------------------------------------
# Read columns of a data set, with one value for each sample: of an array in memory, of a list, or
# of an object whose rows are read when they are needed.

Array = npt.NDArray[Any]
_TEXT = (str, bytes)
_NUMBER = (bool, int, float, complex, np.generic)
_NUMERIC_KINDS = "biufc"  # of numpy's types: booleans, integers, floats, complex numbers
_ALIGNMENT = 64  # bytes; tf.numpy_function copies an array whose memory is aligned to fewer


class Columns(Protocol):
    """The interface of a column of a data set: one value for each sample, read by position."""

    def __len__(self) -> int: ...

    def rows(self, positions: npt.NDArray[np.int64]) -> Array:
        """Return the values at `positions`, which may repeat, stacked along a new first axis."""

    def row(self, position: int) -> Any:
        """Return the value of the sample at `position`, without the axis of samples."""


class ArrayColumn:
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
        array = self._array
        plain = array.flags.c_contiguous and array.flags.aligned and not array.dtype.hasobject
        if not (plain and len(positions) and 0 <= positions.min() <= positions.max() < len(array)):
            found: Array = array[positions]
            return found
        shape = len(positions), *array.shape[1:]  # memory that `tf.numpy_function` need not copy
        memory = np.empty(math.prod(shape) * array.dtype.itemsize + _ALIGNMENT, np.uint8)
        first = -memory.ctypes.data % _ALIGNMENT
        into: Array = memory[first:][: len(memory) - _ALIGNMENT].view(array.dtype).reshape(shape)
        array.take(positions, axis=0, out=into, mode="clip")  # mode="raise" would copy once more
        return into

    def row(self, position: int) -> Any:
        return self._array[position]


class LazyColumn:
    """A column whose rows are read when they are needed, such as a data set of h5py in a file."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return int(self._rows.shape[0])

    def rows(self, positions: npt.NDArray[np.int64]) -> Array:
        return np.stack([self.row(position) for position in positions.tolist()])

    def row(self, position: int) -> Any:
        return np.asarray(self._rows[position])


class ListColumn:
    def __init__(self, values: Sequence[Any]) -> None:
        self._values = values

    @functools.cached_property
    def _type(self) -> np.dtype[Any] | None:
        """The common type, so that all batches have one; None: not all are numbers or lists."""
        if not all(
            isinstance(value, (*_NUMBER, list, tuple, np.ndarray)) for value in self._values
        ):
            return None
        types = {np.asarray(value).dtype for value in self._values}
        if any(each.kind not in _NUMERIC_KINDS for each in types):
            return None
        return np.result_type(*types)

    def __len__(self) -> int:
        return len(self._values)

    def rows(self, positions: npt.NDArray[np.int64]) -> Array:
        values = [np.asarray(self._values[at], self._type) for at in positions.tolist()]
        if odd := [value.shape for value in values if value.shape != values[0].shape]:
            raise DataError(
                f"samples of the data set cannot be made one batch: one has shape "
                f"{values[0].shape} and one {odd[0]}; pad them to one length, or give edl.Dataset "
                "a collate_fn, where collate_fn(samples) returns the arrays of a batch"
            )
        stacked = np.stack(values)
        return stacked.astype(object) if stacked.dtype.kind == "U" else stacked

    def row(self, position: int) -> Any:
        return self._values[position]


def structure_of(source: Any) -> Any:
    """Return the data with a column in place of each array; None for a sequence of samples."""
    if isinstance(source, (tuple, dict)):
        parts = list(source.values()) if isinstance(source, dict) else list(source)
        if isinstance(source, dict) or any(
            isinstance(part, (list, range)) or column_of(part) is not None for part in parts
        ):
            return _columns(source, _lengths(source))
        nested = [structure_of(part) for part in parts if isinstance(part, (tuple, dict))]
        is_nested = len(nested) == len(parts) > 0 and all(each is not None for each in nested)
        return _columns(source, _lengths(source)) if is_nested else None
    return None if isinstance(source, list) else column_of(source)


def column_of(part: Any) -> Columns | None:
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
    if hasattr(part, "__getitems__"):  # of samples, as PyTorch reads them; columns have none
        return None
    if isinstance(getattr(part, "shape", None), tuple) and hasattr(part, "__getitem__"):
        return LazyColumn(part) if len(part.shape) else ArrayColumn(np.asarray(part))
    return None


def _of_array(array: Array) -> Columns:
    values = array.tolist() if array.dtype.hasobject and array.ndim == 1 else []
    if values and all(isinstance(value, (list, np.ndarray)) for value in values):
        return ListColumn(values)
    return ArrayColumn(array)


def _lengths(source: Any) -> set[int]:
    if isinstance(source, (tuple, dict)):
        parts = source.values() if isinstance(source, dict) else source
        return set().union(*(_lengths(part) for part in parts))
    column = None if isinstance(source, (list, range)) else column_of(source)
    return set() if column is None else {len(column)}


def _columns(source: Any, lengths: set[int]) -> Any:
    """Return `source` with columns as members; `lengths` are those of the columns but lists."""
    if isinstance(source, dict):
        return {key: _columns(part, lengths) for key, part in source.items()}
    if isinstance(source, tuple) and not _is_plain(source):
        return tuple(_columns(part, lengths) for part in source)
    if isinstance(source, list) and _is_inputs(source, lengths):
        return tuple(_columns(part, lengths) for part in source)
    if isinstance(source, (list, tuple, range)):
        values = list(source)
        if not _is_plain(values):
            return ListColumn(values)
        is_text = isinstance(values[0], _TEXT)
        return ArrayColumn(np.array(values, dtype=object) if is_text else np.asarray(values))
    column = column_of(source)
    if column is None:
        raise DataError(
            f"a part of the data set is a {type(source).__name__}, which is no column of one value "
            "for each sample; give arrays, lists, or data frames, leave out None, or give one "
            "object with __len__ and __getitem__(i), which returns one sample"
        )
    return column


def _is_plain(values: Sequence[Any]) -> bool:
    return len(values) > 0 and all(isinstance(value, (*_TEXT, *_NUMBER)) for value in values)


def _is_inputs(values: list[Any], lengths: set[int]) -> bool:
    """Return whether a list holds the inputs of a model, each a column; else it is one column."""
    if not values or not all(isinstance(value, (np.ndarray, tf.Tensor)) for value in values):
        return False
    if any(np.ndim(value) == 0 for value in values):
        return False
    own = {len(value) for value in values}
    return own == lengths if lengths else len(own) == 1


Load = Callable[[Batch], Any]
Collate = Callable[[list[Any]], Any]
PROBES = 16  # samples whose shapes are looked at, where a collate function makes the batches

_BATCHES = (
    "the items of a {kind} are batches, and edl forms batches itself: give edl.Dataset its arrays, "
    "or an object whose __len__ counts samples and whose __getitem__(i) returns one of them"
)


def load_read(stream: ShardReader, collate: Collate | None = None) -> Load:
    parse = stream.parse or (lambda sample: sample)
    return lambda batch: _collated([parse(sample) for sample in batch.items], collate)


def reader_of(source: Any, collate: Collate | None = None) -> tuple[int, Load]:
    if isinstance(source, keras.utils.PyDataset):
        raise DataError(_BATCHES.format(kind=type(source).__name__))
    columns = structure_of(source)
    leaves: list[Any] = [source]
    if columns is not None:
        leaves.clear()
        map_parts(columns, leaves.append)
    lengths = sorted({len(column) for column in leaves})
    if len(lengths) > 1:
        raise DataError(f"the arrays of the data set have different lengths: {lengths}")
    if (total := lengths[0]) < 1:
        raise DataError("the data set has 0 samples; at least one is needed")
    if columns is not None and collate is None:
        return total, lambda batch: map_parts(columns, lambda c: c.rows(batch.indices))

    def sample(position: int) -> Any:
        return map_parts(columns, lambda column: column.row(position))

    def samples(positions: list[int]) -> list[Any]:
        if columns is not None:
            return list(map(sample, positions))
        if hasattr(source, "__getitems__"):
            return list(source.__getitems__(positions))
        return [source[index] for index in positions]

    return total, lambda batch: _collated(samples(batch.items), collate)


def signature_of(batch: Any, others: Iterable[Any] = (), any_shape: bool = False) -> Any:
    """Return the `tf.TensorSpec`s of batches; a dimension that differs among them is None."""
    specs = map_parts(
        batch,
        lambda a: tf.TensorSpec((None,) * a.ndim if any_shape else (None, *a.shape[1:]), a.dtype),
    )
    for other in others:
        try:
            specs = _common(specs, other)
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(
                f"collate_fn returned batches of different structure: {error}; each must have the "
                "same parts, types and numbers of dimensions"
            ) from error
    return specs


def _common(spec: Any, batch: Any) -> Any:
    """Return `spec` with None for the dimensions in which `batch` differs from it."""
    if isinstance(spec, dict):
        return {key: _common(item, batch[key]) for key, item in spec.items()}
    if isinstance(spec, tuple):
        return tuple(_common(item, part) for item, part in zip(spec, batch, strict=True))
    if spec.dtype != tf.as_dtype(batch.dtype) or len(spec.shape) != batch.ndim:
        raise ValueError(f"{batch.dtype}{list(batch.shape)} beside {spec.dtype.name}{spec.shape}")
    dimensions = zip(spec.shape, batch.shape, strict=True)
    return tf.TensorSpec([a if a == b else None for a, b in dimensions], spec.dtype)


def check_fits(batch: Any, spec: Any) -> Any:
    try:
        wider = _common(spec, batch)
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"collate_fn returned a batch unlike the others: {error}") from error
    if str(wider) != str(spec):
        raise DataError(
            f"collate_fn returned a batch of {_shapes(batch)}, and those of {PROBES} samples had "
            f"{_shapes(spec)}: pad this dimension to one length, for it did not vary there"
        )
    return batch


def cast_like(batch: Any, spec: Any) -> Any:
    # Samples of Python that happen to be whole numbers make a batch of int64, the next is float64.
    try:
        return _cast(spec, batch)
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"a batch of the data set is unlike the first one: {error}. All samples must have the "
            "same parts and types: give arrays of one type, such as np.asarray(y, np.float32)"
        ) from error


def _cast(spec: Any, batch: Any) -> Any:
    if isinstance(spec, dict):
        return {key: _cast(item, batch[key]) for key, item in spec.items()}
    if isinstance(spec, tuple):
        return tuple(_cast(item, part) for item, part in zip(spec, batch, strict=True))
    if tf.as_dtype(batch.dtype) == spec.dtype:
        return batch
    wanted = np.dtype(spec.dtype.as_numpy_dtype)
    if wanted.hasobject or not np.can_cast(batch.dtype, wanted, "same_kind"):
        raise ValueError(f"{batch.dtype} beside {wanted}")
    cast = batch.astype(wanted)
    if wanted.kind in "iu" and not np.array_equal(cast, batch):
        raise ValueError(f"{batch.dtype} beside {wanted}, which is too small for its numbers")
    return cast


def _shapes(value: Any) -> str:
    return str(map_parts(value, lambda part: tuple(part.shape)))


def _collated(samples: list[Any], collate: Collate | None) -> Any:
    if collate is not None:
        made = collate(samples)
        return map_parts(tuple(made) if isinstance(made, list) else made, _part)
    try:
        return _stack(samples)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"samples of the data set cannot be made one batch: {_oddity(samples) or error}. All "
            "must have the same parts and shapes; a list is a sequence of samples, so give data "
            "and labels as a tuple, (x, y). Samples of different lengths are padded by "
            "edl.Dataset(..., collate_fn=f), where f(samples) returns the arrays of a batch"
        ) from error


def _part(part: Any) -> Any:
    column = column_of(part)
    if column is None:
        raise DataError(
            f"collate_fn returned a {type(part).__name__}; it must return arrays, or a tuple or "
            "dict of arrays"
        )
    return column.rows(np.arange(len(column)))


def _oddity(samples: list[Any]) -> str | None:
    if any(isinstance(sample, (dict, tuple)) for sample in samples):
        forms = [str(map_parts(sample, lambda part: type(part).__name__)) for sample in samples]
    elif all(hasattr(sample, "shape") for sample in samples):
        forms = [f"shape {tuple(sample.shape)}" for sample in samples]
    elif all(isinstance(sample, list) for sample in samples):
        forms = [f"{len(sample)} values" for sample in samples]
    else:
        forms = [f"a {type(sample).__name__}" for sample in samples]
    odd = [form for form in forms if form != forms[0]]
    return f"one has {forms[0]} and one {odd[0]}" if odd else None


def _stack(samples: list[Any]) -> Any:
    first = samples[0]
    if isinstance(first, dict):
        return {key: _stack([sample[key] for sample in samples]) for key in first}
    if isinstance(first, tuple):
        return tuple(_stack(list(column)) for column in zip(*samples, strict=True))
    if isinstance(first, (bytes, str)):
        return np.array(samples, dtype=object)  # numpy's own type would cut off trailing zeros
    stacked = np.stack([np.asarray(sample) for sample in samples])
    if stacked.dtype.kind == "U":
        return stacked.astype(object)
    if stacked.dtype.hasobject and not all(isinstance(one, (str, bytes)) for one in stacked.flat):
        raise ValueError(f"a {type(first).__name__} is no number, text or array of them")
    return stacked


def map_parts(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return a copy of nested tuples and dicts with all else, also lists, replaced."""
    if isinstance(value, dict):
        return {key: map_parts(item, function) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(map_parts(item, function) for item in value)
    return function(value)
