"""Compute the CRC-32 of variables and arrays, by which workers compare their states."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from edl.binding.replica import ByteRange, of_value
from edl.tensorflow.variables import VariableAccess, array_of


def size_of(value: Any) -> int | None:
    """Return the bytes of a variable or an array; None for another value or an unknown shape."""
    if isinstance(value, tf.Variable):
        elements = value.shape.num_elements()
        return None if elements is None else elements * value.dtype.base_dtype.size
    return value.nbytes if isinstance(value, np.ndarray) else None


def digests(access: VariableAccess, parts: Iterable[ByteRange]) -> dict[str, int]:
    """Return digests by the names of the values; a value that is not compared is left out."""
    variables: list[ByteRange] = []
    others: list[ByteRange] = []
    for part in parts:
        (variables if isinstance(part.value, tf.Variable) else others).append(part)
    values = zip(variables, access.read_parts(variables), strict=True)
    found = {part.name: of_value(value) for part, value in values}
    for part in others:
        array = array_of(part.value)
        value = part.value if array is None else array
        found[part.name] = of_value(value, part.start, part.stop)
    return {name: digest for name, digest in found.items() if digest is not None}
