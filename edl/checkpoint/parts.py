"""Write a checkpoint in parts, one by each worker of a ring, and gather the parts.

All workers hold the same weights and optimizer state between two steps, so each can write a part of
them: N hosts write N times as fast to storage that they share, and each copies a part only. (The
state check of :mod:`edl.worker.state_check` proves that they are the same, a piece in each step.) A
part is a safetensors file of its own, ``part-NNNNNNNNNNNN-XXXXXXXX-RRRRR-of-SSSSS.safetensors``:
step, ring, number and count. Rank 0 waits until all parts are there (:func:`gather_parts`), then
writes the checkpoint, which has no tensors itself and names the parts (:func:`named_parts`). Rules:

1. A checkpoint exists when rank 0 has written it. Parts without it are never read, and removed
   when rank 0 has written a later one (:func:`remove_parts`).
2. The name of a part says which ring of which start of the job wrote it (XXXXXXXX), so a part that
   was left behind by another one is never taken for one of this checkpoint.
3. A part names the tensors that it has, with their checksums. Rank 0 compares the names with those
   that it expects of each worker.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace

from edl.checkpoint.format import PackedState, names_in, path_of, read_records
from edl.checkpoint.location import Location, file_bytes
from edl.checkpoint.owner import Owner
from edl.checkpoint.safetensors import Layout, header_of, nothing, write_whole
from edl.checkpoint.tensor_record import PART, TensorRecord
from edl.errors import CheckpointError, some

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
        """Return the place of the parts that the ring `owner` writes after `step`."""
        ring = hashlib.sha256(f"{owner.run}/{owner.generation}".encode()).hexdigest()[:8]
        return cls(directory, step, ring, size)

    def path(self, rank: int) -> Location:
        """Return the path of the part that the worker with this rank writes."""
        name = f"part-{self.step:012d}-{self.ring}-{rank + 1:05d}-of-{self.size:05d}.safetensors"
        return self.directory / name


@dataclass(frozen=True)
class Part:
    """A part of a checkpoint that is there."""

    records: Mapping[str, TensorRecord]  # by name; `file` is empty for those in the part itself
    size: int  # of its file in bytes


def write_part(
    path: Location,
    state: PackedState,
    records: Mapping[str, TensorRecord],
    check: Callable[[], None] = nothing,
) -> int:
    """Write a worker's part of a checkpoint, whole or not at all; return its size in bytes."""
    layout = Layout.of({name: x for name, x in state.blobs.items() if not records[name].file})
    about = {name: asdict(record) for name, record in records.items()}
    header = layout.header({_RECORDS: json.dumps(about, separators=(",", ":"))})
    return write_whole(path, [header, *(blob.data for _, blob in layout.blobs)], check)


def part_at(path: Location) -> Part:
    """Return what the header of the part in the file `path` says; its data are not read."""
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
    """Return the records of all tensors of a checkpoint, each with the name of its file."""
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
            named[at] = _named_by(path_of(directory, at))
        names = named[at]
        if names is not None and name not in names:
            (directory / name).unlink(missing_ok=True)


def _named_by(path: Location) -> set[str] | None:
    """Return the files that a checkpoint names; none without it, None: it cannot be read."""
    try:
        return {record.file for record in read_records(path).values()}
    except CheckpointError:
        return set() if path.name not in names_in(path.parent) else None
