"""Read arrays in ``.npz`` files (:func:`npz`), which are zip archives of ``.npy`` files (members).

Every member has a checksum, which is checked once, when the archive is indexed. After that, a
member without compression is read by row, and a compressed one is held in memory.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from edl.data.columns import (
    Array,
    ArrayDataset,
    Rows,
    RowType,
    Stored,
    check_lengths,
    check_types,
    native,
)
from edl.data.dataset import Dataset, Fragment
from edl.data.files import (
    OPEN_FILES,
    Index,
    Indexed,
    Integers,
    OnError,
    Paths,
    PerProcess,
    Readable,
    Skipped,
    Stamp,
    check_policy,
    index_of,
    refuse_compressed,
    resolve,
)
from edl.data.npy_file import BadHeader, NpyHeader, read_header
from edl.errors import DataError, UsageError

SUFFIX = ".npy"
CHUNK_BYTES = 2**20
LOCAL_HEADER = struct.Struct("<26xHH")  # of a zip member: lengths of its name and extra field
# What zipfile raises for an archive that is damaged or encrypted.
DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    struct.error,
    RuntimeError,
    NotImplementedError,
    BadHeader,
)


def npz(
    paths: Paths,
    *,
    names: Sequence[str] | None = None,
    parse: Callable[[Any], Any] | None = None,
    on_error: OnError = "error",
) -> Dataset[Any]:
    """Return a data set of ``.npz`` files, whose record i is a dict of row i of each array.

    Several files follow one another, sorted by path. An array that is compressed
    (``numpy.savez_compressed``) is loaded in this call and held in memory as a whole, once for a
    process and its forks.

    Args:
        paths: the files: paths or glob patterns.
        names: the names of the arrays to read, which each file must have; None: those of the first
            file that is not damaged.
        parse: a function of the dict that returns what the script sees; None: the dict itself.
        on_error: ``"skip"``: a damaged file is left out, as a whole. ``"error"``: raise a
            DataError.

    Raises:
        DataError: if a file is missing, has no arrays or is compressed as a whole; if an array is
            missing, holds Python objects, has no dimension, is in Fortran's order, has another
            length than those beside it, or rows of another type or shape than in the first file.
            With ``"error"`` also if a file is damaged; with ``"skip"`` if nothing is left.
        UsageError: if ``names`` is empty, or if ``on_error`` has another value.
    """
    check_policy(on_error)
    if names is not None and not names:
        raise UsageError("names is empty; name the arrays to read, or leave it out for all")
    make = partial(index_members, skip=on_error == "skip")
    files = [index_of(path, f"npz {on_error}", make) for path in resolve(paths)]
    opened: PerProcess[Readable] = PerProcess(OPEN_FILES)
    wanted = None if names is None else tuple(names)
    parts: list[Fragment] = []
    columns: list[list[Rows]] = []
    first: dict[str, RowType] = {}
    for file in files:
        if file.index.skipped:
            parts.append(Fragment.of(file, 0))
            columns.append([])
            continue
        wanted = wanted or tuple(file.index.facts)
        headers = {name: _header(file, name) for name in wanted}
        labels = {name: f"{name!r} in {file.path}" for name in wanted}
        check_lengths({labels[name]: header.shape[0] for name, header in headers.items()})
        types = {labels[name]: header.row_type for name, header in headers.items()}
        first = first or types
        check_types(types, first)
        parts.append(Fragment.of(file, headers[wanted[0]].shape[0]))
        columns.append([_rows(opened, file, name, header) for name, header in headers.items()])
    return ArrayDataset("npz", parts, columns, wanted, parse)


class CompressedArray:
    """A column in a compressed member of a `.npz` file, in memory; a copy loads it again."""

    def __init__(self, path: str, stamp: Stamp, name: str) -> None:
        self._path, self._stamp, self._name = path, stamp, name
        self._array = self._load()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._path, self._stamp, self._name)

    def take(self, rows: Integers) -> Array:
        """Return a new array of the rows with the numbers `rows` (from 0), in that order."""
        return self._array[rows]

    def _load(self) -> Array:
        Readable(self._path, self._stamp)  # it is still the file that was indexed
        try:
            with np.load(self._path, allow_pickle=False) as members:
                return native(members[self._name])
        except (OSError, ValueError, *DAMAGE) as error:
            raise DataError(f"{self._path}: cannot load {self._name!r}: {error}") from error


def index_members(path: str, size: int, skip: bool) -> Index:
    """Return an index of an archive: for each array its header, and where its data begin."""
    offset = 0
    try:
        members = {}
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                offset = member.header_offset
                if member.filename.endswith(SUFFIX):
                    name = member.filename.removesuffix(SUFFIX)
                    members[name] = _describe(path, archive, member)
    except DAMAGE as error:
        refuse_compressed(path)
        if not skip:
            raise DataError(
                f"{path} is damaged at byte {offset} of {size}: {error}; restore it, or read with "
                "on_error='skip', which leaves the file out"
            ) from error
        return Index(skipped=(Skipped(0, size, f"damaged at byte {offset}: {error}"),))
    if not members:
        raise DataError(f"{path} holds no arrays")
    return Index(facts=members)


def _describe(path: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> dict[str, int | str]:
    """Return a member's header in hexadecimal and its data's offset; -1: it is compressed."""
    with archive.open(member) as content:
        header = read_header(content)
        if not header.dtype.hasobject and member.file_size != header.stored_bytes:
            raise BadHeader(f"{member.filename} has {member.file_size} bytes and says another size")
        # At the end zipfile compares the checksum.
        while content.read(CHUNK_BYTES):
            pass
        content.seek(0)
        head = content.read(header.length)
    if member.compress_type != zipfile.ZIP_STORED:
        return {"header": head.hex(), "offset": -1}
    with open(path, "rb") as file:
        file.seek(member.header_offset)
        name, extra = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
    return {
        "header": head.hex(),
        "offset": member.header_offset + LOCAL_HEADER.size + name + extra + header.length,
    }


def _header(file: Indexed, name: str) -> NpyHeader:
    if name not in file.index.facts:
        known = ", ".join(sorted(file.index.facts))
        raise DataError(f"{file.path} has no array {name!r}; it has {known}")
    header = read_header(io.BytesIO(bytes.fromhex(file.index.facts[name]["header"])))
    header.check(f"{name!r} in {file.path}")
    return header


def _rows(opened: PerProcess[Readable], file: Indexed, name: str, header: NpyHeader) -> Rows:
    """Return the array `name` of a file as a column: in memory if compressed, else read by row."""
    offset = file.index.facts[name]["offset"]
    if offset < 0:
        return CompressedArray(file.path, file.stamp, name)
    reader = partial(opened.get, file.path, partial(Readable, file.path, file.stamp))
    return Stored(reader, offset, header.dtype, header.row)
