"""Write tensors that do not change once, and not into each checkpoint.

A model that is fine-tuned has most of its weights frozen. :class:`UnchangedTensors` compares each
checkpoint with the one before by checksums: tensors that are equal in both go into a file of their
own, ``unchanged-NNNNNNNNNNNN-XXXXXXXX.safetensors``, and this checkpoint and the later ones name
that file in place of the data, as long as the tensors stay as they are. Rules:

1. Such a file is written once, under a name that no other file gets, and never changed.
2. A worker names, for the tensors that it saves, only files that it has written itself, or that
   belong to the checkpoint from which it has restored the state, whose every byte was checked. A
   worker that has neither restored nor saved begins with a whole checkpoint, or a whole part.
3. A checkpoint gets its name only while all files that it names are there (:func:`check_named`).
4. A file goes when no checkpoint names it, and all checkpoints are newer than it
   (:func:`remove_unreferenced`).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace

from edl.checkpoint import format as files
from edl.checkpoint.format import Checkpoint, PackedState
from edl.checkpoint.location import Location, file_bytes
from edl.checkpoint.safetensors import Layout, nothing, write_whole
from edl.checkpoint.tensor_record import UNCHANGED, TensorRecord, named_files
from edl.errors import CheckpointError

LEAST = 1 << 20  # bytes of tensors; for fewer no file is written


class UnchangedTensors:
    """The tensors of the newest checkpoint that one worker has written or read in a directory."""

    def __init__(self, directory: Location) -> None:
        self._directory = directory
        self._step = -1  # of that checkpoint; -1: there is none
        self._before: Mapping[str, TensorRecord] = {}

    def restored(self, checkpoint: Checkpoint) -> None:
        """Note that this worker has read `checkpoint`, every byte of it, from the directory."""
        self._step, self._before = checkpoint.manifest.step, checkpoint.tensors

    def set_aside(
        self, step: int, state: PackedState, check: Callable[[], None] = nothing
    ) -> tuple[Mapping[str, TensorRecord], int]:
        """Write tensors that are as in the checkpoint before into a file of their own, once."""
        before = self._before if self._step < step else {}
        kept = {name for name in files.names_in(self._directory) if UNCHANGED.fullmatch(name)}
        found, fresh = dict[str, TensorRecord](), list[str]()
        for name, blob in state.blobs.items():
            record = found[name] = TensorRecord.of(blob)
            if (former := before.get(name)) is not None and record.is_unchanged(former):
                if former.file in kept:
                    found[name] = former
                elif blob.data.nbytes:
                    fresh.append(name)
        size = 0
        blobs = {name: state.blobs[name] for name in fresh}
        if sum(blob.data.nbytes for blob in blobs.values()) >= LEAST:
            path = self._directory / f"unchanged-{step:012d}-{uuid.uuid4().hex[:8]}.safetensors"
            layout = Layout.of(blobs)
            data: list[bytes | memoryview] = [layout.header({})]
            data += [blob.data for _, blob in layout.blobs]
            size = write_whole(path, data, check)
            found |= {name: replace(found[name], file=path.name) for name in fresh}
        self._step, self._before = step, found
        return found, size


def check_named(path: Location, records: Mapping[str, TensorRecord]) -> None:
    """Raise OSError if a later ring has removed a file that a checkpoint is about to name."""
    for other in named_files(path, records):
        file_bytes(other)


def remove_unreferenced(directory: Location) -> None:
    """Remove files of unchanged tensors that no checkpoint in `directory` names any more."""
    found = {name: UNCHANGED.fullmatch(name) for name in files.names_in(directory)}
    # A worker of an earlier ring may be about to name a file if a checkpoint of its step or an
    # earlier one is there, and one that cannot be read may name any.
    steps = {name: int(match[1]) for name, match in found.items() if match is not None}
    if not steps:
        return
    named, oldest = set[str](), None
    try:
        for path in files.checkpoint_files(directory):
            named |= {record.file for record in files.read_records(path).values()}
            oldest = files.step_of(path)
    except CheckpointError:
        return
    for name, step in steps.items():
        if name not in named and oldest is not None and step < oldest:
            (directory / name).unlink(missing_ok=True)
