"""Digests of the parts of a state: cheap, and different when a bit or the order of values is."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

PLAIN = (bool, int, float, complex, str, bytes, type(None))


def leaves(state: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """All that containers hold, with names such as ``optimizer.0.weight.exp_avg``."""
    if isinstance(state, dict):
        items: Any = state.items()
    elif isinstance(state, (list, tuple)):
        items = enumerate(state)
    else:
        yield name, state
        return
    for key, value in items:
        yield from leaves(value, f"{name}.{key}" if name else str(key))


def of_bytes(kind: str, data: Any) -> int:
    """A digest of a buffer; ``kind`` keeps equal bytes of different things apart."""
    return zlib.crc32(data, zlib.crc32(kind.encode()))


def of_array(array: np.ndarray[Any, Any]) -> int | None:
    """A digest of an array's bits; None: it holds objects."""
    if array.dtype.hasobject:
        return None
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return of_bytes(f"{array.dtype} {array.shape}", data)


def of_value(value: Any) -> int | None:
    """A digest of anything else; None: nobody knows when two of its kind are equal."""
    if isinstance(value, (np.ndarray, np.generic)):
        return of_array(np.asarray(value))
    return of_bytes("value", repr(value).encode()) if isinstance(value, PLAIN) else None
