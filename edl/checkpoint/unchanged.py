"""Write tensors that do not change once, and not into each checkpoint.

A model that is fine-tuned has most of its weights frozen. :class:`UnchangedTensors` compares each
checkpoint with the one before by checksums: tensors that are equal in both go into a file of their
own, ``unchanged-NNNNNNNNNNNN.safetensors``, and this checkpoint and the later ones name that file
in place of the data, as long as the tensors stay as they are. :func:`remove_unreferenced` removes
such a file when no checkpoint names it any more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from edl.checkpoint import format as files
from edl.checkpoint.format import PackedState, TensorRecord
from edl.checkpoint.location import Location
from edl.checkpoint.safetensors import Layout, nothing, write_whole
from edl.errors import CheckpointError

L = TypeVar("L", bound=Location)
LEAST = 1 << 20  # bytes of tensors; for fewer no file is written
_NAME = re.compile(r"unchanged-(\d{12})\.safetensors")


class UnchangedTensors:
    """The tensors of one worker's checkpoints in a directory, as the newest checkpoint has them.

    Args:
        directory: the directory of checkpoints.
    """

    def __init__(self, directory: Location) -> None:
        self._directory = directory
        self._before: Mapping[str, TensorRecord] | None = None  # None: not looked for yet

    def set_aside(
        self, step: int, state: PackedState, check: Callable[[], None] = nothing
    ) -> tuple[Mapping[str, TensorRecord], int]:
        """Write tensors that have not changed since the newest checkpoint into a file of their own.

        It does so if they have not been written so before, and have at least 1 MiB
        (:data:`LEAST`) together.

        Args:
            step: the number of the step that is saved.
            state: the whole state.
            check: called before the file gets its name; an error that it raises is passed on, and
                the file is not written.

        Returns:
            The record of each tensor of the state, by name, as :func:`edl.checkpoint.format.write`
            takes it; and how many bytes were written.

        Raises:
            CheckpointError: the directory cannot be listed.
            OSError: the file cannot be written.
        """
        before = self._newest() if self._before is None else self._before
        kept = {name for name in files.names_in(self._directory) if _NAME.fullmatch(name)}
        found, fresh = dict[str, TensorRecord](), list[str]()
        for name, blob in state.blobs.items():
            record = found[name] = TensorRecord.of(blob)
            if (former := before.get(name)) is not None and record.is_unchanged(former):
                if former.file in kept:
                    found[name] = former
                elif blob.data.nbytes:
                    fresh.append(name)
        self._before = found
        blobs = {name: state.blobs[name] for name in fresh}
        if sum(blob.data.nbytes for blob in blobs.values()) < LEAST:
            return found, 0
        path = self._directory / f"unchanged-{step:012d}.safetensors"
        layout = Layout.of(blobs)
        data: list[bytes | memoryview] = [layout.header({})]
        data += [blob.data for _, blob in layout.blobs]
        size = write_whole(path, data, check)
        found |= {name: replace(found[name], file=path.name) for name in fresh}
        return found, size

    def _newest(self) -> Mapping[str, TensorRecord]:
        """Return the records of the newest checkpoint; empty: there is none, or it is damaged."""
        for path in files.checkpoint_files(self._directory)[:1]:
            try:
                return files.read_records(path)
            except CheckpointError:
                return {}
        return {}


def remove_unreferenced(directory: Location, step: int) -> None:
    """Remove files of unchanged tensors that no checkpoint in ``directory`` names any more.

    A file that was written for ``step`` or later stays: its checkpoint may not be complete yet. All
    stay if a checkpoint cannot be read, for it may name them.

    Args:
        directory: the directory of checkpoints.
        step: the number of the step that was just saved.

    Raises:
        CheckpointError: if the directory cannot be listed.
        OSError: if a file cannot be removed.
    """
    names = filter(_NAME.fullmatch, files.names_in(directory))
    old = [name for name in names if int(name[10:22]) < step]
    if not old:
        return
    try:
        known = [files.read_records(path) for path in files.checkpoint_files(directory)]
    except CheckpointError:
        return
    named = {record.file for records in known for record in records.values()}
    for name in old:
        if name not in named:
            (directory / name).unlink(missing_ok=True)
