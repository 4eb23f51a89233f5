"""Write and read checkpoints: safetensors files, each written whole, with every byte checked.

:func:`pack_state` and :func:`write` write one, :func:`read_checkpoint` reads one,
:func:`read_manifest` only its header. :func:`checkpoint_files` lists those of a directory, and
:func:`prune` removes old ones. The file::

    LENGTH                 8 bytes, little endian: of the header
    header                 JSON, first {"__metadata__": {"edl-checkpoint": FORMAT, "sha256": ..
                           and then the tensors: type, shape and place of each
    data                   the bytes of all tensors, without gaps

Any tool that reads safetensors finds the tensors by their path in the state, such as
``model.0.weight``. What safetensors cannot express is in its metadata: ``manifest`` (JSON: the
job's position, the state's containers and plain values, and a :class:`TensorRecord` of each tensor,
with the checksum of its data) and ``sha256``, the checksum of LENGTH and header, computed with
zeros in its own place. :mod:`edl.checkpoint.safetensors` writes the container format.

Tensors that do not change from one checkpoint to the next lie in a second file, once for many
checkpoints (:mod:`edl.checkpoint.writer`). Files of format 2 have no such tensors, and one
checksum of all data, ``payload_sha256``.

No pickle is involved: a forged file can spoil the numbers, but cannot run code. The state is made
of dicts, lists, tuples, text, bytes, numbers, None, NumPy arrays and, for a framework's own arrays,
:class:`Blob`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, BinaryIO, TypeVar, cast

from edl.checkpoint.location import Location, RemotePath, file_bytes
from edl.checkpoint.safetensors import (
    LENGTH,
    LONGEST_HEADER,
    METADATA,
    Blob,
    check_header_length,
    header_of,
    nothing,
    read_some,
    serialized,
    write_whole,
)
from edl.checkpoint.tensors import (
    PART,
    TensorRecord,
    check_is_there,
    from_tree,
    named_files,
    to_tree,
)
from edl.errors import CheckpointError, some
from edl.job.state_share import RankArray

logger = logging.getLogger(__name__)
FORMAT = 3
READ = (2, 3)  # the formats that this edl reads
L = TypeVar("L", bound=Location)
_NAME = re.compile(r"step-(\d{12})\.safetensors")
_LEFTOVER = re.compile(r"\.(step|unchanged|part)-.*\.safetensors\..*\.tmp")
_OPENING = b'{"__metadata__":{"edl-checkpoint":"'
_CHECKSUM = re.compile(re.escape(_OPENING) + rb'(\d{1,9})","sha256":"([0-9a-f]{64})"')
_ZEROS = "0" * 64


@dataclass(frozen=True)
class Manifest:
    """The job's position when a checkpoint was written, and what the job had learned until then."""

    job: str
    run: str  # this start of the job
    step: int  # updates that the job had made
    epoch: int  # from 0
    framework: str  # such as "torch"
    source: Mapping[str, Any]  # what is trained on: total, seed, shuffle, batch_size
    ledger: Mapping[str, Any]  # which samples of the epoch are done, leased and free
    saved_at: float = 0.0  # wall clock
    # the measured throughput at each number of workers; empty: none, or not known
    learned: Mapping[str, Any] = field(default_factory=dict)
    samples: int = -1  # trained over all epochs; -1: an older edl did not record it
    # of the gradient noise scale; empty: none
    noise: Mapping[str, Any] = field(default_factory=dict)
    # finished calls of Keras' `fit`, the first one first, each as the fields of a `DoneFit`
    fits: Sequence[Mapping[str, Any]] = field(default_factory=list)
    seed: int = -1  # given last to the framework, with logical workers; -1: not known
    # the fields of an `Arithmetic`, on which the last bits of results depend; empty: not known
    arithmetic: Mapping[str, Any] = field(default_factory=dict)
    fit_stopped: str = ""  # why callbacks had stopped the last call of `fit`; empty: not
    # the fields of a `TrainingLength`; empty: not known
    length: Mapping[str, Any] = field(default_factory=dict)
    # changes of the global batch, the oldest first: [first update with it, samples]
    batches: Sequence[Sequence[int]] = field(default_factory=list)


_MANIFEST = frozenset(one.name for one in fields(Manifest))


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read from a file and found intact."""

    path: Location
    manifest: Manifest
    # of model, optimizer and tracked objects, as it was given to `pack_state`
    state: Any
    tensors: Mapping[str, TensorRecord] = field(default_factory=dict)  # by name


def path_of(directory: L, step: int) -> L:
    return cast(L, directory / f"step-{step:012d}.safetensors")


def step_of(path: Location) -> int:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def checkpoint_files(directory: L) -> list[L]:
    names = sorted(filter(_NAME.fullmatch, names_in(directory)), reverse=True)
    return [cast(L, directory / name) for name in names]


def names_in(directory: Location) -> list[str]:
    try:
        return directory.names() if isinstance(directory, RemotePath) else os.listdir(directory)
    except OSError as error:
        raise CheckpointError(f"cannot list {directory}: {error.strerror}") from error


@dataclass(frozen=True)
class PackedState:
    """A state in the form in which a checkpoint file holds it; `pack_state` returns it."""

    tree: Any  # JSON values, with a name in place of each array
    blobs: Mapping[str, Blob]  # the arrays that were copied, by these names
    # the rank that has copied it, by the name of each other array
    elsewhere: Mapping[str, int] = field(default_factory=dict)


def pack_state(state: Any) -> PackedState:
    # One that lies in one piece is not copied: it must not change until it is written.
    arrays: dict[str, Blob | RankArray] = {}
    tree = to_tree(state, (), arrays)
    return PackedState(
        tree,
        {name: array for name, array in arrays.items() if isinstance(array, Blob)},
        {name: array.rank for name, array in arrays.items() if isinstance(array, RankArray)},
    )


def check_plain_values(state: PackedState) -> None:
    """Find a too long header early: the thread of `write` cannot stop a job at its start."""
    text = json.dumps(json.dumps(state.tree, separators=(",", ":")))  # a text within the header
    try:
        check_header_length(len(text))
    except CheckpointError as error:
        raise CheckpointError(f"a checkpoint cannot be written: {error}") from error


def write(
    path: Location,
    manifest: Manifest,
    state: PackedState,
    check: Callable[[], None] = nothing,
    records: Mapping[str, TensorRecord] | None = None,
) -> int:
    """Write the file of a checkpoint, whole or not at all, and return its size in bytes."""
    if records is None:
        records = {name: TensorRecord.of(blob) for name, blob in state.blobs.items()}
    return write_whole(path, _serialized(manifest, state, records), check)


def prune(directory: Location, step: int, keep: int) -> None:
    # Later ones were refused when the job went on from an earlier one: no good one goes in their
    # favour.
    newest = path_of(directory, step).name
    for path in [path for path in checkpoint_files(directory) if path.name <= newest][keep:]:
        path.unlink(missing_ok=True)


def remove_leftovers(directory: Location) -> None:
    if isinstance(directory, RemotePath):
        return
    try:
        names = names_in(directory)
    except CheckpointError as error:
        logger.warning("files of killed writers stay: %s", error)
        return
    for name in filter(_LEFTOVER.fullmatch, names):
        try:
            (directory / name).unlink(missing_ok=True)
        except OSError as error:
            logger.warning("%s stays, of a killed writer: %s", directory / name, error.strerror)


def is_checkpoint(path: Location) -> bool:
    """Return whether the file `path` begins like a checkpoint of edl; its rest may be damaged."""
    with _opened(path) as file:
        return file.read(LENGTH.size + len(_OPENING))[LENGTH.size :] == _OPENING


def read_manifest(path: Location) -> Manifest:
    """Return the manifest of a checkpoint; damaged data behind its header are not noticed."""
    with _opened(path) as file:
        header = _read_header(path, file)
    for other in named_files(path, header.tensors):
        check_is_there(path, other)
    return header.manifest


def read_records(path: Location) -> Mapping[str, TensorRecord]:
    with _opened(path) as file:
        return _read_header(path, file).tensors


def read_checkpoint(path: Location) -> Checkpoint:
    with _opened(path) as file:
        header = _read_header(path, file)
        payload = bytearray(header.payload_bytes)
        file.seek(header.length)
        if file.readinto(payload) != len(payload):  # type: ignore[attr-defined]
            raise CheckpointError(f"{path} is torn: it ended while it was read")
    if header.payload_sha256 and hashlib.sha256(payload).hexdigest() != header.payload_sha256:
        raise CheckpointError(f"{path} is damaged: its data do not fit their checksum")
    data = {name: memoryview(payload)[slice(*place)] for name, place in header.places.items()}
    for other in named_files(path, header.tensors):
        check_is_there(path, other)
        wanted = [tensor for tensor, one in header.tensors.items() if one.file == other.name]
        try:
            data |= read_some(other, wanted)
        except CheckpointError as error:
            raise CheckpointError(f"{path} cannot be used: {error}") from error
    try:
        blobs = {
            name: Blob(one.kind, one.dtype, one.shape, data[name], one.device)
            for name, one in header.tensors.items()
        }
        state = from_tree(header.state, blobs)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged: {error!r} in its header") from error
    for name, one in header.tensors.items():
        if one.sha256 and hashlib.sha256(data[name]).hexdigest() != one.sha256:
            where = path if not one.file else path.parent / one.file
            raise CheckpointError(f"{where} is damaged: {name} does not fit its checksum")
    return Checkpoint(path, header.manifest, state, header.tensors)


# --- writing


def _serialized(
    manifest: Manifest, state: PackedState, records: Mapping[str, TensorRecord]
) -> list[bytes | memoryview]:
    about = {
        **asdict(manifest),
        "state": state.tree,
        "tensors": {name: asdict(record) for name, record in records.items()},
    }
    metadata = {
        "edl-checkpoint": str(FORMAT),  # this and the next must be the first: see _OPENING
        "sha256": _ZEROS,
        "manifest": json.dumps(about, separators=(",", ":")),
    }
    header, *data = serialized(_own(state, records), metadata)
    checksum = hashlib.sha256(header).hexdigest()
    return [bytes(header).replace(_ZEROS.encode(), checksum.encode(), 1), *data]


def _own(state: PackedState, records: Mapping[str, TensorRecord]) -> dict[str, Blob]:
    return {name: blob for name, blob in state.blobs.items() if not records[name].file}


# --- reading


@contextmanager
def _opened(path: Location) -> Iterator[BinaryIO]:
    try:
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error


@dataclass(frozen=True)
class _CheckpointHeader:
    length: int  # of LENGTH and header together, in bytes; the data begin there
    manifest: Manifest
    state: Any  # containers and plain values, as JSON values
    tensors: Mapping[str, TensorRecord]  # by name
    # by name: its first byte in the data and the byte after its last one
    places: Mapping[str, tuple[int, int]]
    payload_sha256: str  # of the data, in a file of format 2; else empty

    @property
    def payload_bytes(self) -> int:
        return max((end for _, end in self.places.values()), default=0)


def _read_header(path: Location, file: BinaryIO) -> _CheckpointHeader:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    opening = file.read(LENGTH.size + len(_OPENING))
    length = LENGTH.unpack_from(opening)[0] if len(opening) >= LENGTH.size else 0
    if length > LONGEST_HEADER or not _OPENING.startswith(opening[LENGTH.size :]):
        raise CheckpointError(f"{path} is no checkpoint of edl")
    text = opening + file.read(max(0, LENGTH.size + length - len(opening)))
    if len(text) < len(_OPENING) or len(text) < LENGTH.size + length:
        raise CheckpointError(f"{path} is torn: it has {size} bytes and ends in its header")
    match = _CHECKSUM.match(text, LENGTH.size)
    if match is None:
        raise CheckpointError(f"{path} is no checkpoint of edl")
    if int(match[1]) not in READ:
        raise CheckpointError(
            f"{path} has format {int(match[1])}; this edl reads the formats "
            f"{' and '.join(map(str, READ))}: use the edl that wrote it"
        )
    blank = text[: match.start(2)] + _ZEROS.encode() + text[match.end(2) :]
    if hashlib.sha256(blank).hexdigest().encode() != match[2]:
        raise CheckpointError(f"{path} is damaged: its header does not fit its checksum")
    try:
        tensors = json.loads(text[LENGTH.size :])
        metadata = tensors.pop(METADATA)
        about = json.loads(metadata["manifest"])
        header = _CheckpointHeader(
            length=len(text),
            state=about.pop("state"),
            tensors={n: TensorRecord.from_json(one) for n, one in about.pop("tensors").items()},
            manifest=Manifest(**{name: about[name] for name in about.keys() & _MANIFEST}),
            places={name: tuple(entry["data_offsets"]) for name, entry in tensors.items()},
            payload_sha256=metadata.get("payload_sha256", ""),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged: {error!r} in its header") from error
    if size != (expected := header.length + header.payload_bytes):
        how = "torn" if size < expected else "damaged"
        raise CheckpointError(f"{path} is {how}: it has {size} bytes, and should have {expected}")
    return header


# ------------------------------------------------------------
# Decide which ring may write into a directory of checkpoints: the newest that has begun there.
#
# If a whole ring is cut off from ZooKeeper, it trains on, while the job may have been started again
# from its newest checkpoint. So each ring claims the directory when it begins (`take_over`), by a
# file in it, and compares itself before each save with the ring that claimed it last (`renew`). The
# rules:
#
# 1. A ring that begins takes the directory from any other start of the job (*run*), and its claim
#    names the runs from which it was taken. None of these ever gets it back, not even a process of
#    it that slept meanwhile and begins only now.
# 2. A ring that saves takes it from older rings of its own run only. If another run has it, the
#    ring saves no more, unless its own claim was written over by a run from which it has taken it.

FILE = ".edl-owner"
MOST_REPLACED = 100  # runs that a claim names, the newest
PAUSES_S = (0.1, 0.3, 0.6)  # before a failed read is repeated


class OwnerSuperseded(CheckpointError):
    """A ring may not write into a directory of checkpoints any more: a newer one has it."""


@dataclass(frozen=True)
class Owner:
    """A ring that has claimed a directory of checkpoints."""

    job: str
    run: str  # this start of the job
    generation: int  # of the ring
    replaced: tuple[str, ...] = ()  # runs that had the directory before, the newest last
    members: tuple[str, ...] = ()  # "host:port" of `/health`; empty: not known

    def replaced_by(self, newest: Owner) -> str:
        """Return why this ring may not write any more, as a clause; empty if it may."""
        if newest.run != self.run:
            return "" if newest.run in self.replaced else _goes_on_in(newest)
        if newest.generation > self.generation:
            return (
                f"the job goes on in generation {newest.generation}, without this ring of "
                f"generation {self.generation}"
            )
        return ""


def owner_of(directory: Location) -> Owner | None:
    """Return the ring that has claimed `directory` last, or None; OSError: one may have."""
    path = directory / FILE
    try:
        values = json.loads(_text_of(path))
        lists = {name: tuple(values.get(name, ())) for name in ("replaced", "members")}
        return Owner(**{**values, **lists})
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, AttributeError) as error:
        logger.warning("%s is damaged, and counts as no claim of the directory: %s", path, error)
        return None


def _text_of(path: Location) -> str:
    """Return the text of a file; a server may fail for a moment, so it is read again."""
    for pause_s in PAUSES_S:
        try:
            return path.read_text()
        except FileNotFoundError:
            raise
        except OSError:
            time.sleep(pause_s)
    return path.read_text()


def take_over(directory: Location, owner: Owner) -> Owner:
    """Claim `directory` for a ring that begins, and return the claim, which is on the disk then."""
    newest = owner_of(directory)
    if newest is None:
        return _claimed(directory, owner, None)
    if newest.run == owner.run:
        return renew(directory, owner)
    if owner.run in newest.replaced:
        raise OwnerSuperseded(_goes_on_in(newest))
    others = [*newest.replaced, newest.run]
    return _claimed(directory, replace(owner, replaced=tuple(others[-MOST_REPLACED:])), newest)


def renew(directory: Location, owner: Owner) -> Owner:
    newest = owner_of(directory)
    if newest is not None:
        if why := owner.replaced_by(newest):
            raise OwnerSuperseded(why)
        if newest.run == owner.run:
            owner = replace(owner, replaced=newest.replaced)
    return _claimed(directory, owner, newest)


def check_run(directory: Location, owner: Owner) -> None:
    """Raise OwnerSuperseded if another start has the directory, before a file gets its name."""
    newest = owner_of(directory)
    if newest is not None and newest.run not in (owner.run, *owner.replaced):
        raise OwnerSuperseded(_goes_on_in(newest))


def _claimed(directory: Location, owner: Owner, newest: Owner | None) -> Owner:
    if owner != newest:
        write_whole(directory / FILE, [json.dumps(asdict(owner)).encode()])
    return owner


def _goes_on_in(newest: Owner) -> str:
    return (
        f"the directory belongs to generation {newest.generation} of another start of job "
        f"{newest.job} by now, and the job goes on there"
    )


# ------------------------------------------------------------
# Write a checkpoint in parts, one by each worker of a ring, and gather the parts.
#
# All workers hold the same weights and optimizer state between two steps, so each can write a part
# of them: N hosts write N times as fast to storage that they share, and each copies a part only.
# (The state check of `state_check` proves that they are the same, a piece in each step.) A part is
# a safetensors file of its own, `part-NNNNNNNNNNNN-XXXXXXXX-RRRRR-of-SSSSS.safetensors`: step,
# ring, number and count. Rank 0 waits until all parts are there (`gather_parts`), then writes the
# checkpoint, which has no tensors itself and names the parts (`named_parts`). Rules:
#
# 1. A checkpoint exists when rank 0 has written it. Parts without it are never read, and removed
#    when rank 0 has written a later one (`remove_parts`).
# 2. The name of a part says which ring of which start of the job wrote it (XXXXXXXX), so a part
#    that was left behind by another one is never taken for one of this checkpoint.
# 3. A part names the tensors that it has, with their checksums. Rank 0 compares the names with
#    those that it expects of each worker.

_RECORDS = "edl-tensors"  # the name of the records in a part's metadata
_HALF = re.compile(r"\.part-(\d{12})-.*\.tmp")  # what a killed worker leaves on a disk
_FIRST_LOOK_S, _LAST_LOOK_S = 0.02, 1.0  # from one look into the directory to the next


class PartMissing(CheckpointError):
    """A worker has not written its part of a checkpoint."""


@dataclass(frozen=True)
class PartPlace:
    """The names of the parts of one checkpoint."""

    directory: Location
    step: int
    ring: str  # eight hexadecimal digits that no other ring has, of whatever start of the job
    size: int  # how many parts, one of each worker

    @classmethod
    def of(cls, directory: Location, step: int, owner: Owner, size: int) -> PartPlace:
        ring = hashlib.sha256(f"{owner.run}/{owner.generation}".encode()).hexdigest()[:8]
        return cls(directory, step, ring, size)

    def path(self, rank: int) -> Location:
        name = f"part-{self.step:012d}-{self.ring}-{rank + 1:05d}-of-{self.size:05d}.safetensors"
        return self.directory / name


@dataclass(frozen=True)
class Part:
    records: Mapping[str, TensorRecord]  # by name; `file` is empty for those in the part itself
    size: int  # of its file in bytes


def write_part(
    path: Location,
    state: PackedState,
    records: Mapping[str, TensorRecord],
    check: Callable[[], None] = nothing,
) -> int:
    about = {name: asdict(record) for name, record in records.items()}
    metadata = {_RECORDS: json.dumps(about, separators=(",", ":"))}
    return write_whole(path, serialized(_own(state, records), metadata), check)


def part_at(path: Location) -> Part:
    header = header_of(path)
    try:
        about = json.loads(header.metadata[_RECORDS])
        records = {name: TensorRecord.from_json(one) for name, one in about.items()}
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path} is damaged: {error!r} in its header") from error
    inside = {name for name, record in records.items() if not record.file}
    if file_bytes(path) != header.file_bytes or inside != header.places.keys():
        raise CheckpointError(f"{path} is not whole")
    return Part(records, header.file_bytes)


def gather_parts(
    place: PartPlace,
    expected: Mapping[str, int],
    limit_s: float,
    hurry: threading.Event,
) -> dict[int, Part]:
    """Wait until the parts of all workers but rank 0 are there; return them by rank."""
    began, pause_s = time.monotonic(), _FIRST_LOOK_S
    found: dict[int, Part] = {}
    while True:
        there, torn = set(names_in(place.directory)), ""
        for rank in range(1, place.size):
            path = place.path(rank)
            if rank not in found and path.name in there:
                try:
                    found[rank] = part_at(path)
                except (CheckpointError, OSError) as error:  # it may be on its way
                    torn = f" ({error})"
        waited_s = time.monotonic() - began
        if len(found) == place.size - 1:
            break
        if waited_s >= limit_s or hurry.is_set():
            ranks = ", ".join(str(rank) for rank in range(1, place.size) if rank not in found)
            raise PartMissing(
                f"the part of rank {ranks} was not in {place.directory} after {waited_s:.1f} s"
                f"{torn}; all hosts must share this directory, and a worker that dies writes no "
                "part; rank 0 writes the next checkpoint alone"
            )
        hurry.wait(min(pause_s, limit_s - waited_s))
        pause_s = min(2 * pause_s, _LAST_LOOK_S)
    for rank, part in found.items():
        wanted = {name for name, owner in expected.items() if owner == rank}
        if odd := sorted(wanted ^ part.records.keys()):
            raise CheckpointError(
                f"rank 0 and rank {rank} hold different tensors: {some(odd)}; write "
                "edl.checkpoint(..., sharded=False)"
            )
    return found


def named_parts(
    place: PartPlace, own: Mapping[str, TensorRecord], others: Mapping[int, Part]
) -> dict[str, TensorRecord]:
    parts = {0: own, **{rank: part.records for rank, part in others.items()}}
    return {
        name: record if record.file else replace(record, file=place.path(rank).name)
        for rank, records in parts.items()
        for name, record in records.items()
    }


def remove_parts(directory: Location, step: int) -> None:
    """Remove parts, also half-written ones, of steps up to `step` that no checkpoint names."""
    named: dict[int, set[str] | None] = {}
    for name in names_in(directory):
        match = PART.fullmatch(name) or _HALF.fullmatch(name)
        if match is None or (at := int(match[1])) > step:
            continue
        if at not in named:
            path = path_of(directory, at)
            try:
                named[at] = {record.file for record in read_records(path).values()}
            except CheckpointError:  # None: it may name any
                named[at] = set() if path.name not in names_in(directory) else None
        names = named[at]
        if names is not None and name not in names:
            (directory / name).unlink(missing_ok=True)
