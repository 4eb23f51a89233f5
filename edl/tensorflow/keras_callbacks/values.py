"""Convert the values of attributes to data that can be sent, and back, and compare them.

:func:`taken` and :func:`restored_value` convert, :func:`value_fingerprint` compares. Data are None,
booleans, numbers, text, bytes, numpy arrays and scalars, TensorFlow's tensors, and lists, tuples,
dicts, sets and deques of these. Of an object that has variables (a ``tf.Variable``, a metric, a
model), the values of the variables are sent, and are assigned to the variables of the object that
the receiver has in its place.
"""

from __future__ import annotations

import zlib
from collections import deque
from typing import Any

import numpy as np
import tensorflow as tf

from edl.checkpoint.state_tree import can_hold
from edl.tensorflow.transfer import bytes_of, tensor_array_of
from edl.tensorflow.variables import plain, variables_of

PLAIN = (type(None), bool, int, float, str, bytes)
_CONTAINERS: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "deque": deque}
SMALL_BYTES = 2**20
NUMBERS = "biufc"  # kinds of arrays; of others those that TensorFlow has, as bfloat16


class NoData(Exception):
    """The error for a value that cannot be sent; its text is the type of the value."""


def taken(value: Any) -> Any:
    """Return a copy as plain data: values of `PLAIN`, arrays, or a dict of one item by its kind."""
    value = plain(value)
    if type(value) in PLAIN:
        return value
    if isinstance(value, (np.generic, np.ndarray)):
        if value.dtype.kind not in NUMBERS and not hasattr(tf, value.dtype.name):
            raise NoData(f"an array of {value.dtype}")
        array = np.asanyarray(value)
        if tensor_array_of(array) is None and not can_hold(array):
            raise NoData(f"a {type(value).__name__} of {value.dtype}")
        return value.copy() if isinstance(value, np.ndarray) else {"scalar": np.asarray(value)}
    if isinstance(value, tf.Tensor) and hasattr(value, "numpy") and value.dtype != tf.string:
        return {"tensor": value.numpy()}
    if isinstance(value, dict):
        return {"dict": [[taken(key), taken(item)] for key, item in value.items()]}
    for kind, container in _CONTAINERS.items():
        if isinstance(value, container) and not hasattr(value, "_fields"):
            items = sorted(value, key=repr) if kind == "set" else value
            return {kind: [taken(item) for item in items]}
    variables = variables_of(value) if not isinstance(value, type) else None
    if variables is None:
        raise NoData(type(value).__name__)
    return {"variables": [np.asarray(plain(each).numpy()) for each in variables]}


def restored_value(stored: Any, mine: Any) -> Any:
    """Return the value of `stored` to replace `mine`, which stays the same object if it can."""
    if not isinstance(stored, dict):
        return stored.copy() if isinstance(stored, np.ndarray) else stored
    ((kind, items),) = stored.items()
    if kind == "scalar":
        return np.asarray(items)[()]
    if kind == "tensor":
        return tf.constant(items)
    if kind == "variables":
        for variable, value in zip(variables_of(plain(mine)) or [], items, strict=False):
            plain(variable).assign(value)
        return mine
    if kind == "dict":
        return _put_dict(items, mine)
    old = list(mine) if isinstance(mine, (list, tuple)) and len(mine) == len(items) else None
    new = [restored_value(item, old[i] if old else None) for i, item in enumerate(items)]
    if kind == "tuple" or not isinstance(mine, _CONTAINERS[kind]):
        return _CONTAINERS[kind](new)
    mine.clear()
    if kind == "set":
        mine.update(new)
    else:
        mine.extend(new)
    return mine


def _put_dict(items: list[Any], mine: Any) -> Any:
    old = dict(mine) if isinstance(mine, dict) else {}
    keys = [restored_value(key, None) for key, _ in items]
    new = {
        key: restored_value(item, old.get(key)) for key, (_, item) in zip(keys, items, strict=True)
    }
    if not isinstance(mine, dict):
        return new
    mine.clear()
    mine.update(new)
    return mine


def value_fingerprint(stored: Any) -> Any:
    """Return a small value that is equal for equal values of `stored`."""
    if isinstance(stored, np.ndarray):
        return ("array", stored.dtype.name, stored.shape, zlib.crc32(bytes_of(stored).data))
    if isinstance(stored, dict):
        return {kind: value_fingerprint(items) for kind, items in stored.items()}
    if isinstance(stored, list):
        return [value_fingerprint(item) for item in stored]
    return repr(stored)  # nan is equal to itself here


def is_small(stored: Any) -> bool:
    return sum(array.nbytes for array in _arrays(stored)) <= SMALL_BYTES


def _arrays(stored: Any) -> list[np.ndarray[Any, Any]]:
    if isinstance(stored, np.ndarray):
        return [stored]
    if isinstance(stored, dict):
        stored = list(stored.values())
    items = stored if isinstance(stored, list) else ()
    return [array for item in items for array in _arrays(item)]
