"""Read the records of TFRecord files (:func:`tfrecord`).

A record is, little-endian (tensorflow/core/lib/io/record_writer.h)::

    uint64 length | uint32 masked CRC-32C of the length | data | uint32 masked CRC-32C of data

The checksum of the length is checked when the file is indexed, that of the data when the record is
read.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any, BinaryIO, overload

import google_crc32c
import numpy as np

from edl.data.dataset import LENGTHS, STARTS, Dataset, Record, SpanDataset
from edl.data.files import Index, OnError, Paths, Readable, Skipped, refuse_compressed
from edl.errors import DataError

HEADER = struct.Struct("<QI")
LENGTH_BYTES = 8
FOOTER_BYTES = 4
AROUND = HEADER.size + FOOTER_BYTES
_sum = google_crc32c.value


@overload
def tfrecord(paths: Paths, *, parse: None = None, on_error: OnError = ...) -> Dataset[bytes]: ...
@overload
def tfrecord(
    paths: Paths, *, parse: Callable[[bytes], Record], on_error: OnError = ...
) -> Dataset[Record]: ...
def tfrecord(
    paths: Paths,
    *,
    parse: Callable[[bytes], Any] | None = None,
    on_error: OnError = "error",
) -> Dataset[Any]:
    """Return a data set of the records of uncompressed TFRecord files, as bytes.

    Several files follow one another, sorted by path.

    Args:
        paths: the files: paths or glob patterns.
        parse: a function of the bytes that returns what the script sees, for example
            ``tf.train.Example.FromString``; None: the bytes themselves.
        on_error: ``"skip"``: this call reads and checks every record once, and leaves out damaged
            ones. After a damaged length the rest of the file is left out, because nothing shows
            where the next record begins. ``"error"``: raise a DataError, in this call for a damaged
            length or a file that is cut off, and when the record is read for damaged data.

    Raises:
        DataError: if a file is missing or compressed; with ``"error"`` also if it is cut off or
            the length of a record is damaged; with ``"skip"`` if no record is left.
        UsageError: if ``on_error`` has another value.
    """
    return _TFRecord(paths, parse, on_error)


class _TFRecord(SpanDataset[Any]):
    def __init__(
        self, paths: Paths, parse: Callable[[bytes], Any] | None, on_error: OnError
    ) -> None:
        make = partial(index_records, skip=on_error == "skip")
        super().__init__("TFRecord", paths, parse, on_error, "", make)

    def _record(self, readable: Readable, start: int, length: int) -> bytes:
        framed = readable.read(start, length + FOOTER_BYTES)
        data = framed[:length]
        if masked(_sum(data)) != _stored(framed, length):
            way = (
                "it was sound when it was indexed; look at the storage"
                if self._on_error == "skip"
                else "restore it, or read with on_error='skip'"
            )
            raise DataError(
                f"{readable.path}: the record at byte {start - HEADER.size} is damaged: the "
                f"checksum of its {length} bytes does not match; {way}"
            )
        return data


def masked(crc: int) -> int:
    """Return the CRC-32C `crc` in the masked form in which TFRecord files store it."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def index_records(path: str, size: int, skip: bool) -> Index:
    starts, lengths = array("q"), array("q")  # 8 bytes each, where a list takes 40
    skipped: list[Skipped] = []
    offset = 0
    with open(path, "rb") as file:
        while offset < size:
            length, problem = _length_at(file, offset, size)
            if problem:
                if offset == 0:
                    refuse_compressed(path, or_zlib=True)
                if not skip:
                    raise DataError(
                        f"{path}: {problem} at byte {offset} of {size}; restore the file, or read "
                        "with on_error='skip', which leaves the rest of it out"
                    )
                skipped.append(Skipped(offset, size - offset, problem))
                break
            start = offset + HEADER.size
            framed = file.read(length + FOOTER_BYTES) if skip else b""
            if skip and masked(_sum(framed[:length])) != _stored(framed, length):
                reason = "the checksum of the record's data does not match"
                skipped.append(Skipped(offset, length + AROUND, reason))
            else:
                starts.append(start)
                lengths.append(length)
            offset = start + length + FOOTER_BYTES
            if not skip:
                file.seek(offset)
    arrays = {STARTS: np.array(starts), LENGTHS: np.array(lengths)}
    return Index(arrays, skipped=tuple(skipped))


def _length_at(file: BinaryIO, offset: int, size: int) -> tuple[int, str]:
    header = file.read(HEADER.size)
    if len(header) < HEADER.size:
        return 0, "the file ends within a record's header"
    length, crc = HEADER.unpack(header)
    if masked(_sum(header[:LENGTH_BYTES])) != crc:
        kind = "; is it a TFRecord file?" if offset == 0 else ""
        return 0, f"the checksum of a record's length does not match{kind}"
    if offset + length + AROUND > size:
        return 0, "the file ends within a record"
    return length, ""


def _stored(framed: bytes, length: int) -> int:
    return int.from_bytes(framed[length : length + FOOTER_BYTES], "little")
