"""Read records that are spans of bytes in a file: lines of text, or the data of TFRecords.

:class:`SpanDataset` is the base class of both data sets.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from edl.data.dataset import Dataset, Fragment, Record
from edl.data.files import (
    OPEN_FILES,
    Index,
    OnError,
    Paths,
    PerProcess,
    Readable,
    check_policy,
    index_of,
    resolve,
)

STARTS, LENGTHS = "starts", "lengths"  # of the records' bytes in the file


class SpanDataset(Dataset[Record]):
    """A data set whose records are spans of bytes in files; its index takes 16 bytes for each."""

    def __init__(
        self,
        kind: str,
        paths: Paths,
        parse: Callable[[Any], Record] | None,
        on_error: OnError,
        options: str,
        make: Callable[[str, int], Index],
    ) -> None:
        check_policy(on_error)
        self._on_error = on_error
        self._files = [
            index_of(path, f"{kind} {options} {on_error}", make) for path in resolve(paths)
        ]
        self._spans = [
            (file.index.arrays[STARTS], file.index.arrays[LENGTHS]) for file in self._files
        ]
        self._open: PerProcess[Readable] = PerProcess(OPEN_FILES)
        parts = [
            Fragment.of(file, len(starts))
            for file, (starts, _) in zip(self._files, self._spans, strict=True)
        ]
        super().__init__(kind, parts, parse)

    def _read(self, part: int, rows: Sequence[int]) -> list[Any]:
        file = self._files[part]
        readable = self._open.get(part, lambda: Readable(file.path, file.stamp))
        starts, lengths = self._spans[part]
        return [self._record(readable, int(starts[row]), int(lengths[row])) for row in rows]

    @abstractmethod
    def _record(self, readable: Readable, start: int, length: int) -> Any:
        """Read and decode one record of the file `readable`, and return it before `parse`."""

    def _where(self, part: int, row: int) -> str:
        return f"{self._files[part].path}, the record at byte {self._spans[part][0][row]}"
