"""One checkpoint, one file: written whole or not at all, refused unless every byte is right.

::

    edl-checkpoint 1\\n     magic and format version
    LENGTH SHA256\\n        of the manifest
    manifest               JSON: where the job was, the state's containers, the blobs' places
    blobs                  the bytes of all arrays, each beginning at a multiple of 64

No pickle is involved: whoever can write into the directory can at most spoil the numbers. The
state is made of dicts, lists, tuples, text, bytes, numbers, None, numpy arrays and, for what a
framework brings along, :class:`Blob`.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from edl.errors import CheckpointError

FORMAT = 1
ALIGNMENT = 64
CHUNK_BYTES = 16 * 2**20
LONGEST_MANIFEST = 2**30
_MAGIC = b"edl-checkpoint "
_NAME = re.compile(r"step-(\d{12})\.edl")
_OPENING = re.compile(rb"edl-checkpoint (\d{1,9})\n(?:(\d{1,10}) ([0-9a-f]{64})\n)?")
_LONGEST_OPENING = 128


@dataclass(frozen=True)
class Blob:
    """An array in plain bytes. ``kind`` says whose words ``dtype`` and ``device`` are."""

    kind: str  # "numpy", "torch", ...
    dtype: str
    shape: tuple[int, ...]
    data: memoryview  # bytes, in C order
    device: str = "cpu"  # where it lived: a device type


@dataclass(frozen=True)
class Manifest:
    """Where the job was. ``run`` is the start of the job that wrote it, ``saved_at`` for people."""

    job: str
    run: str
    step: int
    epoch: int
    framework: str
    source: Mapping[str, Any]  # what is trained on: total, seed, shuffle, batch_size
    ledger: Mapping[str, Any]
    saved_at: float = 0.0  # wall clock


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and found good."""

    path: Path
    manifest: Manifest
    state: Any


def path_of(directory: Path, step: int) -> Path:
    return directory / f"step-{step:012d}.edl"


def listed(directory: Path) -> list[Path]:
    """The files that are named like checkpoints, highest step first."""
    try:
        names = sorted((n for n in os.listdir(directory) if _NAME.fullmatch(n)), reverse=True)
    except OSError as error:
        raise CheckpointError(f"cannot list {directory}: {error.strerror}") from error
    return [directory / name for name in names]


@dataclass(frozen=True)
class Packed:
    """A state as it goes into a file: its containers as JSON, its arrays apart."""

    tree: Any
    blobs: tuple[Blob, ...]


def pack(state: Any) -> Packed:
    """Take a state apart; no array is copied.

    Raises:
        CheckpointError: the state has something that is not data, and where.
    """
    blobs: list[Blob] = []
    tree = _encode(state, "state", blobs)
    return Packed(tree, tuple(blobs))


def write(path: Path, manifest: Manifest, state: Packed) -> int:
    """Write a checkpoint so that ``path`` is either as before or complete on the disk; its bytes.

    A temporary file in the same directory is synced before it gets its name, and the directory
    after that: a power cut at any moment leaves no half of it under that name.

    Raises:
        OSError: the disk is full, the directory gone, ...
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with temporary.open("wb") as file:
            size = sum(file.write(chunk) for chunk in _chunks(manifest, state))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_directory(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
    return size


def prune(directory: Path, step: int, keep: int) -> None:
    """Remove all but the ``keep`` newest checkpoints up to ``step``.

    Those of later steps are of no use to the job, or it would be there: they were refused, and
    must not push out the good ones.
    """
    newest = path_of(directory, step).name
    for path in [path for path in listed(directory) if path.name <= newest][keep:]:
        path.unlink(missing_ok=True)


def remove_leftovers(directory: Path) -> None:
    """Remove temporary files of writers that were killed."""
    for path in directory.glob(".step-*.edl.*.tmp"):
        path.unlink(missing_ok=True)


def read_manifest(path: Path) -> Manifest:
    """Where the job was; makes sure that the file is ours and as long as it should be.

    Raises:
        CheckpointError: saying what is wrong with the file.
    """
    with _opened(path) as file:
        return _manifest(path, _read_head(path, file)[0])


def read(path: Path) -> Checkpoint:
    """The whole checkpoint; every byte is checked.

    Raises:
        CheckpointError: saying what is wrong with the file.
    """
    with _opened(path) as file:
        head, offset = _read_head(path, file)
        payload = bytearray(int(head["payload_bytes"]))
        file.seek(offset)
        if file.readinto(payload) != len(payload):  # type: ignore[attr-defined]
            raise CheckpointError(f"{path} is torn: it ended while it was read")
    if hashlib.sha256(payload).hexdigest() != head["payload_sha256"]:
        raise CheckpointError(f"{path} is damaged: its data do not fit its checksum")
    try:
        blobs = [_blob(entry, memoryview(payload)) for entry in head["blobs"]]
        state = _decode(head["state"], blobs)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise CheckpointError(f"{path} is damaged: {error!r} in its manifest") from error
    return Checkpoint(path, _manifest(path, head), state)


# --- writing


def _chunks(manifest: Manifest, state: Packed) -> Iterator[bytes | memoryview]:
    entries, offset = [], 0
    digest = hashlib.sha256()
    for blob in state.blobs:
        entries.append(
            {
                "kind": blob.kind,
                "dtype": blob.dtype,
                "shape": list(blob.shape),
                "device": blob.device,
                "offset": offset,
                "bytes": blob.data.nbytes,
            }
        )
        for chunk in _padded(blob.data):
            digest.update(chunk)
            offset += len(chunk)
    head = {
        **asdict(manifest),
        "state": state.tree,
        "blobs": entries,
        "payload_bytes": offset,
        "payload_sha256": digest.hexdigest(),
    }
    text = json.dumps(head, separators=(",", ":")).encode()
    yield _MAGIC + f"{FORMAT}\n{len(text)} {hashlib.sha256(text).hexdigest()}\n".encode()
    yield text
    for blob in state.blobs:
        yield from _padded(blob.data)


def _padded(data: memoryview) -> Iterator[memoryview]:
    """``data`` in pieces, filled up to the alignment of the next blob."""
    data = data.cast("B") if data.nbytes else memoryview(b"")
    for start in range(0, len(data), CHUNK_BYTES):
        yield data[start : start + CHUNK_BYTES]
    if odd := len(data) % ALIGNMENT:
        yield memoryview(bytes(ALIGNMENT - odd))


def _encode(value: Any, where: str, blobs: list[Blob]) -> Any:
    """``value`` as JSON, its arrays moved to ``blobs``."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        items = [
            [_encode(key, where, blobs), _encode(item, f"{where}[{key!r}]", blobs)]
            for key, item in value.items()
        ]
        return {"dict": items}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_encode(item, f"{where}[{i}]", blobs) for i, item in enumerate(value)]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, np.generic):
        return _encode(value.item(), where, blobs)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        value = Blob("numpy", value.dtype.str, value.shape, flat.data)
    if isinstance(value, Blob):
        blobs.append(value)
        return {"blob": len(blobs) - 1}
    raise CheckpointError(
        f"{where} is a {type(value).__module__}.{type(value).__qualname__}, which a checkpoint "
        "cannot hold; state_dict() must be made of dicts, lists, numbers, text and arrays"
    )


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- reading


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error


def _read_head(path: Path, file: BinaryIO) -> tuple[dict[str, Any], int]:
    """The manifest's values, and where the payload begins."""
    size = os.fstat(file.fileno()).st_size
    opening = file.read(_LONGEST_OPENING)
    match = _OPENING.match(opening)
    if match is None:
        if size < len(_MAGIC) + 2 and _MAGIC.startswith(opening[: len(_MAGIC)]):
            raise CheckpointError(f"{path} is torn: it has {size} bytes")
        raise CheckpointError(f"{path} is no checkpoint of edl")
    if int(match[1]) != FORMAT:
        raise CheckpointError(
            f"{path} has format {int(match[1])}; this edl reads format {FORMAT}: use the edl "
            "that wrote it"
        )
    if match[2] is None or not 0 < int(match[2]) <= LONGEST_MANIFEST:
        raise CheckpointError(f"{path} is torn: it ends before its manifest ({size} bytes)")
    length, start = int(match[2]), match.end()
    file.seek(start)
    text = file.read(min(length, max(0, size - start)))
    if len(text) < length:
        raise CheckpointError(f"{path} is torn: it has {size} bytes and ends in its manifest")
    if hashlib.sha256(text).hexdigest().encode() != match[3]:
        raise CheckpointError(f"{path} is damaged: its manifest does not fit its checksum")
    try:
        head: dict[str, Any] = json.loads(text)
        expected = start + length + int(head["payload_bytes"])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged: {error!r} in its manifest") from error
    if size != expected:
        how = "torn" if size < expected else "damaged"
        raise CheckpointError(f"{path} is {how}: it has {size} bytes, and should have {expected}")
    return head, start + length


def _manifest(path: Path, head: Mapping[str, Any]) -> Manifest:
    try:
        return Manifest(
            job=str(head["job"]),
            run=str(head["run"]),
            step=int(head["step"]),
            epoch=int(head["epoch"]),
            framework=str(head["framework"]),
            source=dict(head["source"]),
            ledger=dict(head["ledger"]),
            saved_at=float(head["saved_at"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged: {error!r} in its manifest") from error


def _blob(entry: Mapping[str, Any], payload: memoryview) -> Blob:
    start, length = int(entry["offset"]), int(entry["bytes"])
    if start < 0 or length < 0 or start + length > len(payload):
        raise ValueError(f"a blob at {start} of {length} bytes")
    data = payload[start : start + length]
    return Blob(entry["kind"], entry["dtype"], tuple(entry["shape"]), data, entry["device"])


def _decode(value: Any, blobs: list[Blob]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "dict":
        return {_decode(key, blobs): _decode(item, blobs) for key, item in inner}
    if kind == "list":
        return [_decode(item, blobs) for item in inner]
    if kind == "tuple":
        return tuple(_decode(item, blobs) for item in inner)
    if kind == "bytes":
        return bytes.fromhex(inner)
    if kind != "blob":
        raise ValueError(f"a value of kind {kind!r}")
    blob = blobs[inner]
    if blob.kind != "numpy":
        return blob
    return np.ndarray(blob.shape, dtype=np.dtype(blob.dtype), buffer=blob.data)
