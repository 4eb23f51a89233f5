"""Read the lines of text files as the records of a data set (:func:`text_lines`)."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from functools import partial
from typing import Any, overload

import numpy as np

from edl.data.dataset import LENGTHS, STARTS, Dataset, Record, SpanDataset
from edl.data.files import Index, Integers, OnError, Paths, Readable, Skipped, refuse_compressed
from edl.errors import DataError, UsageError

CHUNK_BYTES = 2**20
NEWLINE = ord("\n")
BYTE_ORDER_MARK = "\ufeff"


@overload
def text_lines(
    paths: Paths, *, encoding: str = ..., parse: None = None, on_error: OnError = ...
) -> Dataset[str]: ...
@overload
def text_lines(
    paths: Paths, *, encoding: None, parse: None = None, on_error: OnError = ...
) -> Dataset[bytes]: ...
@overload
def text_lines(
    paths: Paths,
    *,
    encoding: str | None = ...,
    parse: Callable[[Any], Record],
    on_error: OnError = ...,
) -> Dataset[Record]: ...
def text_lines(
    paths: Paths,
    *,
    encoding: str | None = "utf-8",
    parse: Callable[[Any], Any] | None = None,
    on_error: OnError = "error",
) -> Dataset[Any]:
    r"""Return a data set of the lines of text files, without their ends (``\n`` or ``\r\n``).

    An empty line is a record, too. The last line needs no end. A byte order mark at the beginning
    of a file is left out of its text, but not of bytes. Several files follow one another, sorted by
    path.

    Args:
        paths: the files: paths or glob patterns.
        encoding: the encoding of the files, in which ``\n`` must be one byte of its own; None:
            records are bytes.
        parse: a function of a line that returns what the script sees; None: the line itself.
        on_error: ``"skip"``: this call decodes every line once, and leaves out the lines that
            cannot be decoded. ``"error"``: such a line raises a DataError when it is read.

    Raises:
        DataError: if a file is missing, or compressed; with ``"skip"`` if no line is left.
        UsageError: if there is no such encoding, if a newline is not one byte in it, or if
            ``on_error`` has another value.
    """
    return TextLines(paths, _checked(encoding), parse, on_error)


class TextLines(SpanDataset[Any]):
    def __init__(
        self,
        paths: Paths,
        encoding: str | None,
        parse: Callable[[Any], Any] | None,
        on_error: OnError,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self._encoding = encoding
        verified = encoding if on_error == "skip" else None
        make = partial(index_lines, encoding=verified, chunk_bytes=chunk_bytes)
        super().__init__("text", paths, parse, on_error, str(verified), make)

    def _record(self, readable: Readable, start: int, length: int) -> Any:
        line = readable.read(start, length)
        if line.endswith(b"\r"):
            line = line[:-1]
        if self._encoding is None:
            return line
        try:
            text = line.decode(self._encoding)
        except UnicodeDecodeError as error:
            raise DataError(
                f"{readable.path}: the line at byte {start} is not valid {self._encoding} "
                f"({error.reason} at byte {start + error.start}); mend it, or read with another "
                "encoding or on_error='skip'"
            ) from error
        return text.removeprefix(BYTE_ORDER_MARK) if start == 0 else text


def index_lines(path: str, size: int, encoding: str | None, chunk_bytes: int) -> Index:
    newlines: list[Integers] = []
    offset = 0
    refuse_compressed(path)
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(chunk_bytes):
            newlines.append(np.flatnonzero(np.frombuffer(chunk, np.uint8) == NEWLINE) + offset)
            offset += len(chunk)
    stops = np.concatenate(newlines) if newlines else np.empty(0, np.int64)
    if offset and (not len(stops) or stops[-1] != offset - 1):
        stops = np.append(stops, offset)
    starts = np.concatenate([[0], stops[:-1] + 1]) if len(stops) else stops
    lengths = stops - starts
    if encoding is None:
        return Index({STARTS: starts, LENGTHS: lengths})
    good = _decodable(path, starts, stops, encoding, chunk_bytes)
    skipped = tuple(
        Skipped(int(starts[line]), int(lengths[line]), f"the line is not valid {encoding}")
        for line in np.flatnonzero(~good)
    )
    return Index({STARTS: starts[good], LENGTHS: lengths[good]}, skipped=skipped)


def _decodable(
    path: str, starts: Integers, stops: Integers, encoding: str, chunk_bytes: int
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    good = np.ones(len(starts), np.bool_)
    with open(path, "rb") as file:
        first = 0
        while first < len(starts):
            last = int(np.searchsorted(stops, starts[first] + chunk_bytes))
            last = max(first + 1, min(last, len(starts)))
            base = int(starts[first])
            file.seek(base)
            data = file.read(int(stops[last - 1]) - base)  # all of it, unlike os.pread
            if not _is_in(data, encoding):
                for line in range(first, last):
                    one = data[starts[line] - base : stops[line] - base]
                    good[line] = _is_in(one.removesuffix(b"\r"), encoding)
            first = last
    return good


def _is_in(data: bytes, encoding: str) -> bool:
    try:
        data.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def _checked(encoding: str | None) -> str | None:
    """Return `encoding` if it exists and a newline is one byte of its own in it."""
    if encoding is None:
        return None
    try:
        if codecs.lookup(encoding).name == "utf-8-sig":
            return "utf-8"  # the other would look for a byte order mark in each line
        suits = "a\r\n".encode(encoding) == b"a\r\n"
    except (LookupError, ValueError):
        raise UsageError(f"there is no encoding {encoding!r}") from None
    if not suits:
        raise UsageError(
            f"lines cannot be found in {encoding}: a newline is not one byte of its own there; "
            "convert the files to utf-8"
        )
    return encoding
