"""Read the samples of a script's data source, and form the arrays of a batch from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl.data.stream import ShardReader
from edl.errors import DataError
from edl.step.engine import Batch
from edl.tensorflow.columns import Columns, column_of, structure_of

Load = Callable[[Batch], Any]
Collate = Callable[[list[Any]], Any]

PROBES = 16  # samples whose shapes are looked at, where a collate function makes the batches
_BATCHES = (
    "the items of a {kind} are batches, and edl forms batches itself: give edl.Dataset its arrays, "
    "or an object whose __len__ counts samples and whose __getitem__(i) returns one of them"
)


def load_read(stream: ShardReader, collate: Collate | None = None) -> Load:
    """Return a function that loads a batch of a stream: the arrays of its samples."""
    parse = stream.parse or (lambda sample: sample)
    return lambda batch: _collated([parse(sample) for sample in batch.items], collate)


def reader_of(source: Any, collate: Collate | None = None) -> tuple[int, Load]:
    """Return the number of samples of columns or objects, and a function that loads a batch."""
    if isinstance(source, keras.utils.PyDataset):
        raise DataError(_BATCHES.format(kind=type(source).__name__))
    columns = structure_of(source)
    if columns is not None:
        return _reader_of_columns(columns, collate)
    total = len(source)
    _check_some(total)
    return total, lambda batch: _collated(_samples(source, batch.items), collate)


def _reader_of_columns(columns: Any, collate: Collate | None) -> tuple[int, Load]:
    lengths = sorted({len(column) for column in _leaves(columns)})
    if len(lengths) > 1:
        raise DataError(f"the arrays of the data set have different lengths: {lengths}")
    _check_some(lengths[0])
    if collate is None:
        return lengths[0], lambda batch: map_parts(columns, lambda c: c.rows(batch.indices))

    def sample(position: int) -> Any:
        return map_parts(columns, lambda column: column.row(position))

    return lengths[0], lambda batch: _collated(list(map(sample, batch.items)), collate)


def _check_some(total: int) -> None:
    if total < 1:
        raise DataError("the data set has 0 samples; at least one is needed")


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
    """Return `batch`, which a collate function has made, if it fits `spec`."""
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
    """Return `batch` with each array cast to the type that `spec` has for it."""
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


def _samples(source: Any, indices: list[int]) -> list[Any]:
    if hasattr(source, "__getitems__"):
        return list(source.__getitems__(indices))
    return [source[index] for index in indices]


def _collated(samples: list[Any], collate: Collate | None) -> Any:
    if collate is None:
        return _batch_of(samples)
    made = _without_lists(collate(samples))
    return map_parts(made, _part)


def _part(part: Any) -> Any:
    column = column_of(part)
    if column is None:
        raise DataError(
            f"collate_fn returned a {type(part).__name__}; it must return arrays, or a tuple or "
            "dict of arrays"
        )
    return column.rows(np.arange(len(column)))


def _batch_of(samples: list[Any]) -> Any:
    """Return `samples` stacked along a new first axis, tuples and dicts member by member."""
    try:
        return _stack(samples)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"samples of the data set cannot be made one batch: {_oddity(samples) or error}. All "
            "must have the same parts and shapes; a list is a sequence of samples, so give data "
            "and labels as a tuple, (x, y). Samples of different lengths are padded by "
            "edl.Dataset(..., collate_fn=f), where f(samples) returns the arrays of a batch"
        ) from error


def _oddity(samples: list[Any]) -> str | None:
    """Return words for how two of `samples` differ, if they do in structure or shape."""
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


def _without_lists(made: Any) -> Any:
    return tuple(made) if isinstance(made, list) else made


def _leaves(value: Any) -> list[Columns]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    if isinstance(value, tuple):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]


def map_parts(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return a copy of nested tuples and dicts with all else, also lists, replaced."""
    if isinstance(value, dict):
        return {key: map_parts(item, function) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(map_parts(item, function) for item in value)
    return function(value)
