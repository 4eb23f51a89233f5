"""What a script trains on, and its samples as the arrays of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from edl.daemon.sampler import Batch
from edl.data.stream import Reading
from edl.errors import DataError

Load = Callable[[Batch], Any]


def load_read(stream: Reading) -> Load:
    """A function that returns what was read of ``stream`` as a batch."""
    parse = stream.parse or (lambda sample: sample)
    return lambda batch: _batch_of([parse(sample) for sample in batch.items])


def reader_of(source: Any) -> tuple[int, Load]:
    """The number of samples of ``source``, and a function that returns some of them as a batch.

    An array, or a tuple or dict of arrays of one length, gives batches of the same structure; a
    list of arrays in it is a tuple, as the inputs of a Keras model may be given. Anything else with
    ``__len__`` and ``__getitem__`` is a sequence of samples, which are stacked, tuples and dicts
    by their parts (``__getitems__``, if there is one, is given all indices of a batch at once).

    Raises:
        DataError: it is empty, or its arrays differ in length.
    """
    if isinstance(source, (tuple, dict)):
        source = _without_lists(source)
    arrays = _map(source, _array) if _made_of_arrays(source) else None
    if arrays is not None:
        leaves = _leaves(arrays)
        lengths = sorted({len(array) for array in leaves})
        if len(lengths) > 1:
            raise DataError(f"the arrays of the data set have different lengths: {lengths}")
        total, load = lengths[0], lambda batch: _map(arrays, lambda array: array[batch.indices])
    else:
        total, load = len(source), lambda batch: _batch_of(_samples(source, batch.items))
    if total < 1:
        raise DataError("the data set has 0 samples; at least one is needed")
    return total, load


def signature_of(batch: Any) -> Any:
    """The ``tf.TensorSpec``s of batches like this one, of any number of samples."""
    return _map(batch, lambda array: tf.TensorSpec((None, *array.shape[1:]), array.dtype))


def _samples(source: Any, indices: list[int]) -> list[Any]:
    if hasattr(source, "__getitems__"):
        return list(source.__getitems__(indices))
    return [source[index] for index in indices]


def _batch_of(samples: list[Any]) -> Any:
    """Samples one above the other.

    Raises:
        DataError: they differ in shape or structure.
    """
    try:
        return _stack(samples)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"samples of the data set cannot be made one batch: {_oddity(samples) or error}. All "
            "must have the same parts and shapes; a list is a sequence of samples, so give data "
            "and labels as a tuple, (x, y)"
        ) from error


def _oddity(samples: list[Any]) -> str | None:
    """Two of the samples that are not alike; None: they are, as far as one can tell."""
    if any(isinstance(sample, (dict, tuple)) for sample in samples):
        forms = [str(_map(sample, lambda part: type(part).__name__)) for sample in samples]
    elif all(hasattr(sample, "shape") for sample in samples):
        forms = [f"shape {tuple(sample.shape)}" for sample in samples]
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
    if stacked.dtype.hasobject and not all(isinstance(one, (str, bytes)) for one in stacked.flat):
        raise ValueError(f"a {type(first).__name__} is no number, text or array of them")
    return stacked


def _without_lists(source: Any) -> Any:
    """With tuples in the place of lists of arrays."""
    if isinstance(source, dict):
        return {key: _without_lists(item) for key, item in source.items()}
    if isinstance(source, tuple):
        return tuple(_without_lists(item) for item in source)
    made_of_arrays = isinstance(source, list) and _made_of_arrays(tuple(source))
    return tuple(source) if made_of_arrays else source


def _made_of_arrays(source: Any) -> bool:
    parts = _leaves(source) if isinstance(source, (tuple, dict)) else [source]
    return bool(parts) and all(isinstance(part, (np.ndarray, tf.Tensor)) for part in parts)


def _array(part: Any) -> npt.NDArray[Any]:
    array = np.asarray(part)
    if array.ndim == 0:
        raise DataError("a single number is no data set; its first axis must be the samples")
    return array


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    if isinstance(value, tuple):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]


def _map(value: Any, function: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {key: _map(item, function) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_map(item, function) for item in value)
    return function(value)
