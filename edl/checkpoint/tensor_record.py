"""Describe the tensors of a checkpoint, and the files in which their data lie."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from edl.checkpoint.location import Location, file_bytes
from edl.checkpoint.safetensors import Blob
from edl.errors import CheckpointError

UNCHANGED = re.compile(r"unchanged-(\d{12})-[0-9a-f]{8}\.safetensors")
PART = re.compile(r"part-(\d{12})-[0-9a-f]{8}-\d{5}-of-\d{5}\.safetensors")


@dataclass(frozen=True)
class TensorRecord:
    """The description of one tensor in the header of a checkpoint."""

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
        """Return the record of `blob`, whose bytes are read for the checksum."""
        digest = hashlib.sha256(blob.data).hexdigest()
        return cls(blob.kind, blob.dtype, tuple(blob.shape), blob.device, digest)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TensorRecord:
        """Return the record with these `values`, by the names of its fields, as JSON has them."""
        return cls(**{**values, "shape": tuple(values["shape"])})

    def is_unchanged(self, before: TensorRecord | None) -> bool:
        """Return whether the record `before` is of an equal tensor, wherever its data lie."""
        return before is not None and replace(before, file=self.file) == self


def is_named_by_checkpoints(name: str) -> bool:
    """Return whether `name` is that of a file which a checkpoint refers to for some tensors."""
    return bool(UNCHANGED.fullmatch(name) or PART.fullmatch(name))


def check_is_whole(path: Location) -> None:
    """Raise CheckpointError if `path` has the name of a file with some tensors of checkpoints."""
    if is_named_by_checkpoints(path.name):
        raise CheckpointError(
            f"{path} has only some tensors of a checkpoint; give the directory {path.parent}, or a "
            "file of it that `edl checkpoint list` names"
        )


def named_files(path: Location, records: Mapping[str, TensorRecord]) -> list[Location]:
    """Return the paths of the other files that have tensors of a checkpoint."""
    return [path.parent / name for name in sorted({one.file for one in records.values()} - {""})]


def check_is_there(path: Location, other: Location) -> None:
    """Raise CheckpointError if `other`, which the checkpoint `path` names, is not there."""
    try:
        file_bytes(other)
    except OSError as error:
        raise CheckpointError(
            f"{path} needs {other.name}, which is not beside it ({error.strerror}): copy the whole "
            "directory, or write what you need by `edl checkpoint export`"
        ) from error
