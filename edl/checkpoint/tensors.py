"""Express a state as JSON values and arrays, as a checkpoint file holds it, and read it again.

:func:`to_tree` and :func:`from_tree` do it. No pickle is involved.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edl.checkpoint.location import Location, file_bytes
from edl.checkpoint.safetensors import METADATA, TYPES, Blob
from edl.errors import CheckpointError
from edl.job.state_share import RankArray
from edl.record import dict_of_kind, kind_of_dict


def to_tree(value: Any, path: tuple[Any, ...], blobs: dict[str, Blob | RankArray]) -> Any:
    """Return `value` as JSON values, with a name in place of each array."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        items = [
            [to_tree(key, path, blobs), to_tree(item, (*path, key), blobs)]
            for key, item in value.items()
        ]
        return {kind_of_dict(value): items}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [to_tree(item, (*path, i), blobs) for i, item in enumerate(value)]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, np.generic) and (number := _number(value)) is not None:
        return number
    if isinstance(value, np.ndarray):
        value = _blob(value) or value
    if isinstance(value, Blob | RankArray):
        name = wanted = ".".join(str(key) for key in path) or "state"
        while name in blobs or name == METADATA:
            name = f"{wanted}#{len(blobs)}"
        blobs[name] = value
        return {"tensor": name}
    where = "state" + "".join(f"[{key!r}]" for key in path)
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    kind += f" of {value.dtype}" if isinstance(value, np.ndarray) else ""
    raise CheckpointError(
        f"{where} is a {kind}, which a checkpoint cannot hold; state_dict() must be made of dicts, "
        "lists, numbers, text and arrays of them"
    )


def can_hold(value: Any) -> bool:
    """Return whether a value has the same type when a checkpoint that holds it is read."""
    if isinstance(value, np.ndarray):
        # It would lose its mask.
        if value.dtype.hasobject or isinstance(value, np.ma.MaskedArray):
            return False
        # The text of a structured type, or of bfloat16 of ml_dtypes, names bytes only.
        return bool(np.dtype(value.dtype.str) == value.dtype)
    if value is None or isinstance(value, bool | int | float | str | bytes | Blob | RankArray):
        return True
    return isinstance(value, np.generic) and _number(value) is not None


def _number(value: np.generic) -> int | float | None:
    """Return a NumPy scalar as Python's number; None if that would be another value."""
    # A date in nanoseconds would be an integer.
    number = None if value.dtype.kind in "mM" else value.item()
    return number if isinstance(number, int | float) else None


def _blob(array: np.ndarray[Any, Any]) -> Blob | None:
    """Return an array as a Blob, with the same memory if contiguous; None: it is refused."""
    if not can_hold(array):
        return None
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    plain = array.dtype.isbuiltin == 1 and array.dtype.name in TYPES  # in our byte order
    dtype = array.dtype.name if plain else array.dtype.str
    return Blob("numpy", dtype, array.shape, flat.data)


def from_tree(value: Any, blobs: Mapping[str, Blob]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "list":
        return [from_tree(item, blobs) for item in inner]
    if kind == "tuple":
        return tuple(from_tree(item, blobs) for item in inner)
    if kind == "bytes":
        return bytes.fromhex(inner)
    if kind != "tensor":
        items = {from_tree(key, blobs): from_tree(item, blobs) for key, item in inner}
        return dict_of_kind(kind, items)
    blob = blobs[inner]
    if blob.kind != "numpy":
        return blob
    return np.ndarray(blob.shape, dtype=np.dtype(blob.dtype), buffer=blob.data)


# ------------------------------------------------------------
# Describe the tensors of a checkpoint, and the files in which their data lie.

UNCHANGED = re.compile(r"unchanged-(\d{12})-[0-9a-f]{8}\.safetensors")
PART = re.compile(r"part-(\d{12})-[0-9a-f]{8}-\d{5}-of-\d{5}\.safetensors")


@dataclass(frozen=True)
class TensorRecord:
    kind: str  # as in `Blob`
    dtype: str
    shape: tuple[int, ...]
    device: str  # its type
    sha256: str = ""  # of its data; empty in a file of format 2
    file: str = ""  # the file beside the checkpoint's that has its data; empty: the latter

    def __post_init__(self) -> None:
        # Only a forged header can have it.
        if self.file and not is_named_by_checkpoints(self.file):
            raise ValueError(f"a file {self.file!r}")

    @classmethod
    def of(cls, blob: Blob) -> TensorRecord:
        digest = hashlib.sha256(blob.data).hexdigest()
        return cls(blob.kind, blob.dtype, tuple(blob.shape), blob.device, digest)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TensorRecord:
        return cls(**{**values, "shape": tuple(values["shape"])})

    def is_unchanged(self, before: TensorRecord | None) -> bool:
        """Return whether the record `before` is of an equal tensor, wherever its data lie."""
        return before is not None and replace(before, file=self.file) == self


def is_named_by_checkpoints(name: str) -> bool:
    return bool(UNCHANGED.fullmatch(name) or PART.fullmatch(name))


def check_is_whole(path: Location) -> None:
    if is_named_by_checkpoints(path.name):
        raise CheckpointError(
            f"{path} has only some tensors of a checkpoint; give the directory {path.parent}, or a "
            "file of it that `edl checkpoint list` names"
        )


def named_files(path: Location, records: Mapping[str, TensorRecord]) -> list[Location]:
    return [path.parent / name for name in sorted({one.file for one in records.values()} - {""})]


def check_is_there(path: Location, other: Location) -> None:
    try:
        file_bytes(other)
    except OSError as error:
        raise CheckpointError(
            f"{path} needs {other.name}, which is not beside it ({error.strerror}): copy the whole "
            "directory, or write what you need by `edl checkpoint export`"
        ) from error
