"""Write and read safetensors files: named tensors behind a JSON header, which any tool can open.

:func:`serialized` and :func:`write_whole` write one, :func:`read_plain` reads one. The file::

    LENGTH                 8 bytes, little endian: of the header
    header                 JSON: {"__metadata__": {text: text}, NAME: {type, shape, place}, ...}
    data                   the bytes of all tensors, without gaps

A type that the format does not know is stored as bytes, ``U8``.

The safetensors package is not used: it writes under a temporary name of its own choice, which
nobody could remove after a kill. To read a file, it either takes twice the file's size in memory or
cannot read bfloat16 (ADR 0013).
"""

from __future__ import annotations

import errno
import json
import math
import os
import struct
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from edl.checkpoint.location import Location, RemotePath
from edl.errors import CheckpointError, some

LENGTH = struct.Struct("<Q")
METADATA = "__metadata__"
LONGEST_HEADER = 2**30  # other tools refuse one of more than 100 MB

# Types that safetensors has; torch, TensorFlow and numpy have the same names for them.
TYPES = {
    "bool": "BOOL",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
}
_NAMES = {kind: name for name, kind in TYPES.items()}


@dataclass(frozen=True)
class Blob:
    """An array in plain bytes."""

    kind: str  # "numpy", "torch", ...
    dtype: str  # of its elements, like "float32"
    shape: tuple[int, ...]  # empty for a single number
    data: memoryview  # bytes, in C order
    device: str = "cpu"  # where it lived: a device type


def serialized(blobs: Mapping[str, Blob], metadata: Mapping[str, str]) -> list[bytes | memoryview]:
    """Return the content of a file in pieces: LENGTH and header, then the data of each tensor."""
    # So each begins at a multiple of its alignment.
    ordered = sorted(blobs.items(), key=lambda item: -_alignment(item[1]))
    entries: dict[str, Any] = {METADATA: metadata}
    offset = 0
    for name, blob in ordered:
        size, kind = blob.data.nbytes, TYPES.get(blob.dtype)
        shape = list(blob.shape) if kind else [size]
        end = offset + size
        entries[name] = {"dtype": kind or "U8", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % LENGTH.size)  # the format's rule, and it aligns the data
    check_header_length(len(text))
    return [LENGTH.pack(len(text)) + text, *(blob.data for _, blob in ordered)]


def check_header_length(length: int) -> None:
    if length > LONGEST_HEADER:
        raise CheckpointError(
            f"its header would have {length / 1e6:.1f} MB, and may have "
            f"{LONGEST_HEADER / 1e6:.1f} MB at most: state_dict() must return large bytes and "
            "long lists as NumPy arrays, which are not in the header"
        )


@contextmanager
def _opened(path: Location) -> Iterator[IO[bytes]]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is no whole safetensors file: {error}") from error


def read_plain(path: Location) -> dict[str, Blob]:
    with _opened(path) as file:
        content = bytearray(file.seek(0, os.SEEK_END))  # that PyTorch may write to
        file.seek(0)
        file.readinto(content)  # type: ignore[attr-defined]
        (length,) = LENGTH.unpack_from(content)
        begin = LENGTH.size + length
        if begin > len(content):
            raise ValueError(f"its header has {length} bytes, and the file {len(content)}")
        entries = json.loads(content[LENGTH.size : begin])
        entries.pop(METADATA, None)
        data = memoryview(content)[begin:]
        return {name: _blob(entry, data) for name, entry in entries.items()}


def read_some(path: Location, names: Collection[str]) -> dict[str, memoryview]:
    found: dict[str, memoryview] = {}
    with _opened(path) as file:
        header = _header(file)
        if lacking := sorted(set(names) - header.places.keys()):
            raise CheckpointError(f"{path} lacks the tensor {some(lacking)}")
        for name in names:
            begin, end = header.places[name]
            found[name] = memoryview(bytearray(end - begin))
            file.seek(header.length + begin)
            if file.readinto(found[name]) != end - begin:  # type: ignore[attr-defined]
                raise ValueError("it is cut off")
    return found


@dataclass(frozen=True)
class Header:
    length: int  # of LENGTH and header, in bytes
    metadata: Mapping[str, str]
    places: Mapping[str, tuple[int, int]]  # by name: first byte, end

    @property
    def file_bytes(self) -> int:
        return self.length + max((end for _, end in self.places.values()), default=0)


def header_of(path: Location) -> Header:
    with _opened(path) as file:
        return _header(file)


def _header(file: IO[bytes]) -> Header:
    (length,) = LENGTH.unpack(file.read(LENGTH.size))
    if length > LONGEST_HEADER:
        raise ValueError(f"a header of {length} bytes")
    entries = json.loads(file.read(length))
    metadata = entries.pop(METADATA, {})
    places = {name: tuple(entry["data_offsets"]) for name, entry in entries.items()}
    return Header(LENGTH.size + length, metadata, places)


def nothing() -> None:
    """Do nothing: the check of a file that is written in any case."""


def write_whole(
    path: Location, chunks: Iterable[bytes | memoryview], check: Callable[[], None] = nothing
) -> int:
    """Write a file, whole or not at all, and return its size in bytes."""
    if isinstance(path, RemotePath):
        return path.write_whole(chunks, check)
    # Synced before it is renamed, and the directory after that: a power cut leaves the old file or
    # the whole new one.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with temporary.open("wb") as file:
            size = sum(file.write(chunk) for chunk in chunks)
            file.flush()
            os.fsync(file.fileno())
        check()
        os.replace(temporary, path)
        _sync_directory(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
    return size


def _blob(entry: Mapping[str, Any], data: memoryview) -> Blob:
    begin, end = entry["data_offsets"]
    if len(own := data[begin:end]) != end - begin:
        raise ValueError(f"a tensor of {end - begin} bytes has {len(own)}")
    return Blob("safetensors", _NAMES[entry["dtype"]], tuple(entry["shape"]), own)


def _alignment(blob: Blob) -> int:
    """Return the largest power of two that divides the size of an element; 0 if empty."""
    item = blob.data.nbytes // max(1, math.prod(blob.shape))
    return item & -item


def _sync_directory(directory: Path) -> None:
    """Sync `directory` itself to the disk, so a file's new name survives a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems, of virtual machines and Windows servers, cannot do it.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
