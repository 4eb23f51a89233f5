"""Read arrays in ``.npy`` files by row (:func:`npy`).

The format is described in numpy.lib.format. Its header has the type and the shape. There is no
checksum of the data, so damaged data are noticed only if the file is too short. The header is read
anew at each start, because that costs less than to look up an index of the file.
"""

from __future__ import annotations

import ast
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

import google_crc32c
import numpy as np

from edl.data.columns import (
    ArrayDataset,
    RowType,
    Stored,
    arrange,
    check_array,
    check_lengths,
    check_types,
    row_bytes,
)
from edl.data.dataset import Dataset, Fragment
from edl.data.files import (
    OPEN_FILES,
    OnError,
    Paths,
    PerProcess,
    Readable,
    Skipped,
    Stamp,
    check_policy,
    refuse_compressed,
    resolve,
)
from edl.errors import DataError

MAGIC = b"\x93NUMPY"
LONGEST_HEADER = 2**20  # bytes; a longer one is damage
# What ast.literal_eval, NumPy and we make of a header that is none. The last two are raised for
# one that is nested too deeply, too.
UNREADABLE = (
    ValueError,
    SyntaxError,
    TypeError,
    KeyError,
    IndexError,
    OverflowError,
    RecursionError,
    MemoryError,
)


@dataclass(frozen=True)
class NpyHeader:
    dtype: np.dtype[Any]
    # the first number counts records, which are rows; () for a single value
    shape: tuple[int, ...]
    fortran: bool  # stored column after column
    length: int  # in bytes, with the magic: the data begin there

    @property
    def row(self) -> tuple[int, ...]:
        return self.shape[1:]

    @property
    def row_type(self) -> RowType:
        return self.dtype.str, self.row

    def check(self, what: str) -> None:
        check_array(what, self.dtype, self.shape)
        if self.fortran and len(self.shape) > 1:
            raise DataError(
                f"{what} is stored in Fortran's order, in which a record lies scattered over the "
                "whole file; save it with numpy.save(path, numpy.ascontiguousarray(array))"
            )


class BadHeader(Exception):
    """The bytes are no intact header of a `.npy` array; the message says why."""


def read_header(file: IO[bytes]) -> NpyHeader:
    start = file.read(8)
    if len(start) < 8 or not start.startswith(MAGIC):
        raise BadHeader("it does not begin like a .npy file")
    width = struct.Struct("<H" if start[6] == 1 else "<I")
    raw = file.read(width.size)
    if start[6] not in (1, 2, 3) or len(raw) < width.size:
        raise BadHeader("its header is damaged")
    (length,) = width.unpack(raw)
    text = file.read(length) if length <= LONGEST_HEADER else b""
    if len(text) < length or not length:
        raise BadHeader("its header is damaged")
    try:
        fields = ast.literal_eval(text.decode("utf-8" if start[6] == 3 else "latin-1").strip())
        dtype = np.lib.format.descr_to_dtype(fields["descr"])
        shape = tuple(int(length) for length in fields["shape"])
        fortran = bool(fields["fortran_order"])
    except UNREADABLE as error:
        raise BadHeader(f"its header is damaged ({error})") from error
    if min(shape, default=0) < 0:
        raise BadHeader("its header is damaged (a negative length)")
    return NpyHeader(dtype, shape, fortran, 8 + width.size + length)


def npy(
    *positional: Paths,
    parse: Callable[[Any], Any] | None = None,
    on_error: OnError = "error",
    **named: Paths,
) -> Dataset[Any]:
    """Return a data set of arrays in ``.npy`` files, whose record i is row i of each array.

    The records of ``npy("x.npy")`` are rows, those of ``npy("x.npy", "y.npy")`` tuples, and those
    of ``npy(x="x.npy", y="y.npy")`` dicts. Each argument may name several files, which follow one
    another in sorted order. The n-th files of all arguments must then have the same number of rows.
    This call reads the headers only; rows are read when they are needed.

    Args:
        *positional: for each array its files (paths or glob patterns), if the arrays have no names.
        parse: a function of a record that returns what the script sees; None: the record itself.
        on_error: ``"skip"``: rows that are missing at the end of a file are left out, in all
            columns; with a damaged header, all rows of that file, in all columns. ``"error"``:
            raise a DataError.
        **named: the files of each array, by the array's name.

    Raises:
        DataError: if a file is missing or compressed, holds Python objects, has no dimension, or is
            in Fortran's order; if its header names another number of rows than those of the files
            beside it, or rows of another type or shape than the first file of its array; if the
            arguments have different numbers of files. With ``"error"`` also if a file is cut off or
            has a damaged header; with ``"skip"`` if no row is left.
        UsageError: if there is no file, if some have names and some have none, or if ``on_error``
            has another value.
    """
    check_policy(on_error)
    given, names = arrange(positional, named, "edl.data.npy")
    columns = [resolve(paths) for paths in given]
    check_counts(columns)
    opened: PerProcess[Readable] = PerProcess(OPEN_FILES)
    parts, rows = [], []
    first: dict[str, RowType] = {}
    for paths in zip(*columns, strict=True):
        stamps = [Stamp.of(path) for path in paths]
        found = [_look(path, stamp, on_error) for path, stamp in zip(paths, stamps, strict=True)]
        headers = {path: one.header for path, one in zip(paths, found, strict=True) if one.header}
        check_lengths({path: header.shape[0] for path, header in headers.items()})
        if len(headers) == len(paths):
            types = {path: header.row_type for path, header in headers.items()}
            first = first or types
            check_types(types, first)
        count = min(one.rows for one in found)
        parts.append(_part(paths, stamps, found, count))
        rows.append(
            [
                _rows(opened, path, stamp, one)
                for path, stamp, one in zip(paths, stamps, found, strict=True)
                if one.header
            ]
        )
    return ArrayDataset("npy", parts, rows, names, parse)


def check_counts(columns: list[tuple[str, ...]]) -> None:
    if len({len(files) for files in columns}) > 1:
        counts = ", ".join(f"{len(files)} like {files[0]}" for files in columns)
        raise DataError(f"columns are read side by side, file by file, but there are {counts}")


@dataclass(frozen=True)
class _RowsFound:
    """The rows that a `.npy` file has, which are fewer than its header says if it is cut off."""

    header: NpyHeader | None  # None if it is damaged
    rows: int  # whole rows that the file has; 0 if the header is damaged
    offset: int = 0  # where the damage begins; 0: nowhere, or in the header
    problem: str = ""  # why there are no more rows; empty if all are there


def _look(path: str, stamp: Stamp, on_error: OnError) -> _RowsFound:
    try:
        with open(path, "rb") as file:
            header = read_header(file)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except BadHeader as error:
        refuse_compressed(path)
        if on_error == "error":
            raise DataError(f"{path} is not readable at byte 0: {error}") from error
        return _RowsFound(None, 0, 0, str(error))
    header.check(path)
    size = row_bytes(header.dtype, header.row)
    rows = header.shape[0]
    whole = rows if size == 0 else min(rows, max(0, stamp.size - header.length) // size)
    if whole == rows:
        return _RowsFound(header, rows)
    offset = header.length + whole * size
    problem = f"the file ends after {whole} of {rows} rows"
    if on_error == "error":
        raise DataError(
            f"{path} is cut: {problem}; row {whole} begins at byte {offset} and the file has "
            f"{stamp.size}; restore it, or read with on_error='skip'"
        )
    return _RowsFound(header, whole, offset, problem)


def _part(
    paths: tuple[str, ...], stamps: list[Stamp], found: list[_RowsFound], count: int
) -> Fragment:
    skipped = []
    for path, stamp, one in zip(paths, stamps, found, strict=True):
        if one.problem:
            skipped.append(
                (path, Skipped(one.offset, max(0, stamp.size - one.offset), one.problem))
            )
        elif one.header and count < one.rows:
            size = row_bytes(one.header.dtype, one.header.row)
            offset, rest = one.header.length + count * size, (one.rows - count) * size
            reason = f"{one.rows - count} rows are missing in a column beside it"
            skipped.append((path, Skipped(offset, rest, reason)))
    about = [(one.header.dtype.str, one.header.shape) for one in found if one.header]
    return Fragment(
        name=",".join(os.path.basename(path) for path in paths),
        size=sum(stamp.size for stamp in stamps),
        count=count,
        digest=google_crc32c.value(repr(about).encode()),
        skipped=tuple(skipped),
    )


def _rows(opened: PerProcess[Readable], path: str, stamp: Stamp, found: _RowsFound) -> Stored:
    assert found.header is not None
    reader = partial(opened.get, path, partial(Readable, path, stamp))
    return Stored(reader, found.header.length, found.header.dtype, found.header.row)
