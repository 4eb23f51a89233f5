"""Gather NumPy arrays of all workers between two steps, for ``edl.gather`` and ``edl.sum``.

:func:`gather_arrays` does it. All workers get the same answer, even if one of them dies during the
exchange (:mod:`edl.worker.exchange`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from edl.errors import UsageError
from edl.framework.process import current_worker

Array = npt.NDArray[Any]
LENGTH_BYTES = 8


def gather_arrays(
    arrays: Mapping[str, Array],
    empty_fits: bool = False,  # arrays without elements may be of any type
    exchange: Callable[[bytes], list[bytes]] | None = None,  # None: that between two steps
) -> list[dict[str, Array]]:
    """Return the arrays of all workers, which all call this: a dict for each, in rank order."""
    forms = [[name, str(array.dtype), [*array.shape]] for name, array in sorted(arrays.items())]
    header = json.dumps(forms).encode()
    parts = [np.ascontiguousarray(array).tobytes() for _, array in sorted(arrays.items())]
    # The message: the length of the header, the header (JSON), the bytes of the arrays.
    payload = b"".join([len(header).to_bytes(LENGTH_BYTES, "little"), header, *parts])
    send = current_worker().exchange_bytes if exchange is None else exchange
    found = [_read(each) for each in send(payload)]
    if empty_fits:
        found = _with_fitting_types(found)
    kinds = [{name: str(array.dtype) for name, array in each.items()} for each in found]
    for rank, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise UsageError(
                f"the worker of rank {rank} gathers {_told(kind)}, and that of rank 0 "
                f"{_told(kinds[0])}; all must give the same names and types"
            )
    return found


def check_rows(name: str, parts: list[Array]) -> None:
    """Check that the arrays of all workers can be concatenated along the first dimension."""
    shapes = [part.shape for part in parts]
    if len({shape[1:] for shape in shapes}) > 1 or len({len(shape) for shape in shapes}) > 1:
        raise UsageError(
            f"edl.gather{name and f' of {name}'}: the workers' shapes are "
            f"{', '.join(map(str, shapes))}; they may differ in the first dimension only"
        )


def check_same_shape(name: str, parts: list[Array]) -> None:
    """Check that the arrays of all workers can be added up: their shapes must be equal."""
    shapes = [part.shape for part in parts]
    if len({*shapes}) > 1:
        raise UsageError(
            f"edl.sum{name and f' of {name}'}: the workers' shapes are "
            f"{', '.join(map(str, shapes))}; they must be equal"
        )


def _read(payload: bytes) -> dict[str, Array]:
    """Return the arrays of one worker by name, from its message `payload`."""
    begin = LENGTH_BYTES + int.from_bytes(payload[:LENGTH_BYTES], "little")
    arrays = {}
    for name, kind, shape in json.loads(payload[LENGTH_BYTES:begin]):
        count = int(np.prod(shape, dtype=np.int64))
        array = np.frombuffer(payload, kind, count, begin).reshape(shape)
        arrays[name], begin = array.copy(), begin + array.nbytes  # which can be written to
    return arrays


def _with_fitting_types(found: list[dict[str, Array]]) -> list[dict[str, Array]]:
    """Return the arrays of all workers, with empty ones converted to the type of the others."""
    types: dict[str, Any] = {}
    for each in found:
        for name, array in each.items():
            if array.size:
                types.setdefault(name, array.dtype)
    return [
        {
            name: array if array.size else array.astype(types.get(name, array.dtype))
            for name, array in each.items()
        }
        for each in found
    ]


def _told(kind: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {each}".strip() for name, each in kind.items()) or "nothing"
