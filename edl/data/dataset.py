"""Define the base class of all data sets of edl: records that are read by index.

A data set consists of *parts*: a file each, or several files whose records are read side by side.
Scripts get a :class:`Dataset` from the functions of :mod:`edl.data`.
"""

from __future__ import annotations

import hashlib
import operator
import os
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Generic, TypeVar, cast

import numpy as np

from edl.data.files import (
    OPEN_FILES,
    Index,
    Indexed,
    OnError,
    Paths,
    PerProcess,
    Readable,
    Skipped,
    check_policy,
    index_of,
    resolve,
)
from edl.errors import DataError

Record = TypeVar("Record")
LOGGED_ONE_BY_ONE = 50  # events about what is left out, before the rest is logged as one


@dataclass(frozen=True)
class Fragment:
    """A part of a data set: what one file holds, or several files that are read side by side."""

    # of the file, without its folder, or of several, joined by commas; for arrays in memory, theirs
    name: str
    size: int  # of all its files in bytes
    count: int  # of records, without those that are left out
    digest: int  # of where records lie, equal on two hosts
    skipped: tuple[tuple[str, Skipped], ...] = ()  # (path, what)

    @classmethod
    def of(cls, indexed: Indexed, count: int) -> Fragment:
        """Return the part that consists of one file, `indexed`, with `count` records."""
        name, size = os.path.basename(indexed.path), indexed.stamp.size
        skipped = tuple((indexed.path, one) for one in indexed.index.skipped)
        return cls(name, size, count, indexed.index.digest(), skipped)


class Dataset(ABC, Generic[Record]):
    """A map-style data set, as in PyTorch: records 0 to ``len(self) - 1``, in file order.

    ``dataset[i]`` is one record, and ``dataset.__getitems__(indices)``, which PyTorch's loader
    prefers, returns the records of a batch; a negative index counts from the end. A data set may be
    forked, and pickled if its ``parse`` may be; every process opens the files for itself when it
    first reads one. A derived class defines :meth:`_read`.

    Args:
        kind: the kind of the files, such as ``npy``, for messages.
        parts: the parts of the data set, in order.
        parse: a function of a stored record that returns what the script sees; None: the record
            itself.

    Raises:
        DataError: when a record is read that is not as it was indexed; the message names file and
            byte. Also when the data set is made, if all of its records are left out as damaged.
        IndexError: when a record is read that does not exist.
    """

    def __init__(
        self, kind: str, parts: Sequence[Fragment], parse: Callable[[Any], Record] | None
    ) -> None:
        self._kind = kind
        self._parts = tuple(parts)
        self._parse = parse
        self._starts = [0, *accumulate(part.count for part in parts)]  # and the total
        if not len(self) and self.skipped:
            path, first = self.skipped[0]
            raise DataError(
                f"nothing is left of {self._files_text}: {path} at byte {first.offset}: "
                f"{first.reason}"
            )

    # --- records ---

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> Record:
        return self.__getitems__([index])[0]

    def __iter__(self) -> Iterator[Record]:
        # Else Python would take an IndexError of `parse` for the end.
        for index in range(len(self)):
            yield self[index]

    def __getitems__(self, indices: Iterable[int]) -> list[Record]:
        wanted: dict[int, tuple[list[int], list[int]]] = {}  # part -> places, rows in the part
        for place, given in enumerate(indices):
            index = self._checked(given)
            part = bisect_right(self._starts, index) - 1
            places, rows = wanted.setdefault(part, ([], []))
            places.append(place)
            rows.append(index - self._starts[part])
        records: dict[int, Record] = {}
        for part, (places, rows) in wanted.items():
            for place, row, raw in zip(places, rows, self._read(part, rows), strict=True):
                records[place] = self._parsed(raw, part, row)
        return [records[place] for place in range(len(records))]

    @abstractmethod
    def _read(self, part: int, rows: Sequence[int]) -> Sequence[Any]:
        """Return some records of one part, in the order of `rows`, before they are parsed."""

    def _where(self, part: int, row: int) -> str:
        return f"{self._parts[part].name}, record {row}"

    def _checked(self, given: int) -> int:
        index = operator.index(given)
        if not -len(self) <= index < len(self):
            raise IndexError(f"there is no record {index}: the source has {len(self)}")
        return index % len(self)

    def _parsed(self, raw: Any, part: int, row: int) -> Record:
        if self._parse is None:
            return cast(Record, raw)
        try:
            return self._parse(raw)
        except Exception as error:
            error.add_note(f"while parsing {self._where(part, row)}")
            raise

    # --- about itself ---

    @property
    def fingerprint(self) -> str:
        """One line of text that is equal on two hosts if their data are the same.

        It is computed from the names and sizes of the files, and the number and places of the
        records. The folders in which the files lie do not matter. The bytes of the records do not
        enter, so files that differ only in them have the same line.
        """
        digest = hashlib.sha256()
        for part in self._parts:
            digest.update(repr((part.name, part.size, part.count, part.digest)).encode())
        size = sum(part.size for part in self._parts)
        return (
            f"{len(self)} records in {self._files_text} of {size} bytes, "
            f"digest {digest.hexdigest()[:12]}"
        )

    @property
    def _files_text(self) -> str:
        return f"{len(self._parts)} {self._kind} {'file' if len(self._parts) == 1 else 'files'}"

    @property
    def skipped(self) -> tuple[tuple[str, Skipped], ...]:
        """The byte ranges of files that are left out, as pairs of a path and a :class:`Skipped`.

        They are in the order of the files, and by position in each. Without any: ().
        """
        return tuple(one for part in self._parts for one in part.skipped)

    def __repr__(self) -> str:
        return f"<edl.data: {self.fingerprint}>"


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


def skip_events(dataset: object) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the events to log about what a data set leaves out: pairs of a reason and details."""
    skipped = dataset.skipped if isinstance(dataset, Dataset) else ()
    for path, one in skipped[:LOGGED_ONE_BY_ONE]:
        reason = f"{path}: {one.bytes} bytes from byte {one.offset} are left out: {one.reason}"
        yield reason, {"file": path, "offset": one.offset, "bytes": one.bytes}
    # The log keeps a limited number of events.
    rest = skipped[LOGGED_ONE_BY_ONE:]
    if rest:
        size, files = sum(one.bytes for _, one in rest), len({path for path, _ in rest})
        reason = (
            f"{len(rest)} more parts of {files} {'file' if files == 1 else 'files'} are left out, "
            f"{size} bytes together"
        )
        yield reason, {"parts": len(rest), "files": files, "bytes": size}


def fingerprint_of(dataset: object) -> str:
    """Return `fingerprint` of `dataset`: a line that is equal where the data are."""
    return dataset.fingerprint if isinstance(dataset, Dataset) else ""


def as_rows(rows: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return `rows`, a sequence of row numbers, as an array of 64-bit integers."""
    return np.fromiter(rows, np.int64, len(rows))
