"""Read rows of Parquet files (:func:`parquet`).

The smallest part of a file that can be decoded is a row group. So the first read of a row decodes
its whole row group; decoded row groups are cached.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from edl.data.dataset import Dataset, Fragment
from edl.data.files import (
    OPEN_FILES,
    Index,
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
from edl.errors import DataError, UsageError

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.parquet

CACHE_BYTES = 256 * 2**20  # decoded row groups that one process keeps
GROUPS, ROWS, OFFSETS = "groups", "rows", "offsets"  # of the row groups that can be read
SCHEMA = "schema"
Values = Sequence[Any] | np.ndarray[Any, Any]  # of one column in one row group, by row
Mask = np.ndarray[Any, np.dtype[np.bool_]]


def parquet(
    paths: Paths,
    *,
    columns: Sequence[str] | None = None,
    parse: Callable[[dict[str, Any]], Any] | None = None,
    on_error: OnError = "error",
    cache_bytes: int = CACHE_BYTES,
) -> Dataset[Any]:
    """Return a data set of Parquet files, whose record i is row i as a dict by column name.

    Several files follow one another, sorted by path. Integers, floats and booleans are NumPy
    scalars, lists of numbers are NumPy arrays, and other values are what PyArrow's ``as_py`` makes
    of them. A missing value is None, and a list in which a number is missing is a Python list with
    None in its place. Needs PyArrow.

    Args:
        paths: the files: paths or glob patterns.
        columns: the names of the columns to read; None: all columns, which all files must share.
        parse: a function of the dict that returns what the script sees; None: the dict itself.
        on_error: ``"skip"``: this call reads all row groups once, and leaves damaged ones out; so
            is a file without an intact footer. ``"error"``: raise a DataError, in this call for a
            damaged footer, and when a row is read for a damaged row group.
        cache_bytes: how many bytes of decoded row groups a process keeps; at least the last one.

    Raises:
        DataError: if a file is missing, is compressed as a whole, lacks a column, has two of one
            name, or has other columns or types than the first file; with ``"error"`` also if it has
            no intact footer; with ``"skip"`` if nothing is left.
        UsageError: if PyArrow is not installed, if ``columns`` is empty, or if ``on_error`` has
            another value.
    """
    check_policy(on_error)
    _arrow()
    if columns is not None and not columns:
        raise UsageError("columns is empty; name the columns to read, or leave it out for all")
    wanted = None if columns is None else list(columns)
    return _Parquet(paths, wanted, parse, on_error, cache_bytes)


class _Parquet(Dataset[Any]):
    """A data set of the rows of Parquet files; `parquet` makes it and checks its arguments."""

    def __init__(
        self,
        paths: Paths,
        columns: list[str] | None,
        parse: Callable[[dict[str, Any]], Any] | None,
        on_error: OnError,
        cache_bytes: int,
    ) -> None:
        make = partial(index_groups, columns=columns, skip=on_error == "skip")
        kind = f"parquet {columns} {on_error}"
        self._files = [index_of(path, kind, make) for path in resolve(paths)]
        sound = [file for file in self._files if SCHEMA in file.index.facts]
        for file in sound[1:]:
            _check_schema(file.path, file.index.facts[SCHEMA], sound[0].path, sound[0].index.facts)
        self._columns = list(sound[0].index.facts[SCHEMA]) if sound else []
        self._first_rows = [
            np.cumsum([0, *file.index.arrays[ROWS]]) if SCHEMA in file.index.facts else [0]
            for file in self._files
        ]
        self._open: PerProcess[_Reader] = PerProcess(OPEN_FILES)
        self._decoded: PerProcess[_RowGroup] = PerProcess(cache_bytes, attrgetter("bytes"))
        parts = [
            Fragment.of(file, int(first[-1]))
            for file, first in zip(self._files, self._first_rows, strict=True)
        ]
        super().__init__("Parquet", parts, parse)

    def _read(self, part: int, rows: Sequence[int]) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = [{} for _ in rows]
        places = np.searchsorted(self._first_rows[part], rows, side="right") - 1
        for place in np.unique(places).tolist():
            first = int(self._first_rows[part][place])
            with self._blamed(part, place):
                values = self._group(part, place).values
                for which in np.flatnonzero(places == place).tolist():
                    row = rows[which] - first
                    records[which] = {name: values[name][row] for name in self._columns}
        return records

    def _group(self, part: int, place: int) -> _RowGroup:
        file = self._files[part]

        def decode() -> _RowGroup:
            reader = self._open.get(part, lambda: _Reader(file.path, file.stamp))
            return reader.decode(int(file.index.arrays[GROUPS][place]), self._columns)

        return self._decoded.get((part, place), decode)

    @contextlib.contextmanager
    def _blamed(self, part: int, place: int) -> Iterator[None]:
        try:
            yield
        except _damage() as error:
            file = self._files[part]
            number = int(file.index.arrays[GROUPS][place])
            raise DataError(
                f"{file.path}: row group {number}, at byte {file.index.arrays[OFFSETS][place]}, "
                f"cannot be read: {_first_line(error)}; restore the file, or read with "
                "on_error='skip'"
            ) from error

    def _where(self, part: int, row: int) -> str:
        return f"{self._files[part].path}, row {row}"


class _RowGroup:
    """A decoded row group, in about the memory that PyArrow takes for it."""

    def __init__(self, table: pyarrow.Table) -> None:
        self.bytes = int(table.nbytes)  # of `table` in memory
        # by column
        self.values = {name: _values(table.column(name)) for name in table.column_names}

    def check(self) -> None:
        for values in self.values.values():
            if isinstance(values, _Objects):
                values.check()


class _Reader:
    """A Parquet file, open in this process; threads that call `decode` wait for each other."""

    def __init__(self, path: str, stamp: Stamp) -> None:
        Readable(path, stamp)
        self._file = open_file(path)
        self._one_thread = threading.Lock()

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close(force=True)

    def decode(self, group: int, columns: list[str]) -> _RowGroup:
        with self._one_thread:
            return _RowGroup(read_group(self._file, group, columns))


def index_groups(path: str, size: int, columns: list[str] | None, skip: bool) -> Index:
    """Return an index of a file's row groups: number, number of rows and first byte of each."""
    try:
        file = open_file(path)
    except _damage() as error:
        refuse_compressed(path)
        problem = f"it has no sound Parquet footer: {_first_line(error)}"
        if not skip:
            raise DataError(
                f"{path} cannot be read at byte {max(0, size - 8)} of {size}: {problem}; restore "
                "it, or read with on_error='skip', which leaves the file out"
            ) from error
        return Index(skipped=(Skipped(0, size, problem),))
    with file:
        schema = _schema(path, file, columns)
        arrays: dict[str, list[int]] = {GROUPS: [], ROWS: [], OFFSETS: []}
        skipped = []
        for number in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(number)
            offset, length = _extent(group)
            problem = _problem(file, number, list(schema)) if skip else ""
            if problem:
                skipped.append(Skipped(offset, length, f"row group {number}: {problem}"))
                continue
            arrays[GROUPS].append(number)
            arrays[ROWS].append(group.num_rows)
            arrays[OFFSETS].append(offset)
    found = {name: np.array(values, np.int64) for name, values in arrays.items()}
    return Index(found, {SCHEMA: schema}, tuple(skipped))


def open_file(path: str) -> pyarrow.parquet.ParquetFile:
    """Return a Parquet file without PyArrow's threads, which would not survive a fork."""
    return _arrow().parquet.ParquetFile(
        path, memory_map=False, pre_buffer=False, page_checksum_verification=True
    )


def read_group(file: pyarrow.parquet.ParquetFile, number: int, columns: list[str]) -> pyarrow.Table:
    """Return some columns of one row group as a PyArrow table, read without PyArrow's threads."""
    return file.read_row_group(number, columns=columns, use_threads=False)


def _problem(file: pyarrow.parquet.ParquetFile, number: int, columns: list[str]) -> str:
    """Read one row group to the last value; return in one line why that fails, or ""."""
    try:
        table = read_group(file, number, columns)
        table.validate(full=True)
        _RowGroup(table).check()
    except _damage() as error:
        return _first_line(error)
    return ""


def _schema(
    path: str, file: pyarrow.parquet.ParquetFile, columns: list[str] | None
) -> dict[str, str]:
    counts = Counter(field.name for field in file.schema_arrow)
    types = {field.name: str(field.type) for field in file.schema_arrow}
    for name in columns or ():
        if name not in types:
            raise DataError(f"{path} has no column {name!r}; it has {', '.join(types)}")
    for name in columns or types:
        if counts[name] > 1:
            raise DataError(
                f"{path} has {counts[name]} columns named {name!r}, and a row is a dict by name; "
                "rename them, or name the columns to read without this one"
            )
    return {name: types[name] for name in columns or types}


def _check_schema(path: str, mine: dict[str, str], first: str, facts: Any) -> None:
    theirs = facts[SCHEMA]
    for name in dict.fromkeys([*mine, *theirs]):
        if mine.get(name) != theirs.get(name):
            raise DataError(
                f"{path} and {first} have different columns: {name!r} is "
                f"{mine.get(name, 'missing')} in the first and {theirs.get(name, 'missing')} in "
                "the second; name the columns to read, or mend the files"
            )


def _extent(group: pyarrow.parquet.RowGroupMetaData) -> tuple[int, int]:
    starts, stops = [], []
    for number in range(group.num_columns):
        column = group.column(number)
        pages = [column.data_page_offset, column.dictionary_page_offset or column.data_page_offset]
        starts.append(min(pages))
        stops.append(min(pages) + column.total_compressed_size)
    return (min(starts), max(stops) - min(starts)) if starts else (0, 0)


def _values(column: pyarrow.ChunkedArray) -> Values:
    """Return the values of a column as a sequence in row order; a missing value is None."""
    array = column.combine_chunks()
    if _is_number(array.type) or _arrow().types.is_boolean(array.type):
        values: Values = _filled(array)
    elif _is_list(array.type) and _is_number(array.type.value_type):
        values = _Lists(array)
    else:
        return _Objects(array)
    return _Optional(values, _missing(array)) if array.null_count else values


class _Optional(Sequence[Any]):
    """A column's values in row order, of which some are missing: those read as None."""

    def __init__(self, values: Values, missing: Mask) -> None:
        self._values, self._missing = values, missing

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, row: Any) -> Any:
        return None if self._missing[row] else self._values[row]


class _Lists(Sequence[Any]):
    """A column of lists of numbers; each one read is a new array, or a list with None in it."""

    def __init__(self, lists: pyarrow.Array) -> None:
        self._lists = lists

    def __len__(self) -> int:
        return len(self._lists)

    def __getitem__(self, row: Any) -> Any:
        numbers = self._lists[row].values
        return numbers.to_pylist() if numbers.null_count else numbers.to_numpy(False).copy()


class _Objects(Sequence[Any]):
    """A column of values that PyArrow converts to Python objects, each when it is read."""

    # All at once would take several times the memory for short texts.

    def __init__(self, array: pyarrow.Array) -> None:
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, row: Any) -> Any:
        return self._array[row].as_py()

    def check(self) -> None:
        self._array.to_pylist()


def _is_number(kind: pyarrow.DataType) -> bool:
    types = _arrow().types
    return bool(types.is_integer(kind) or types.is_floating(kind))


def _is_list(kind: pyarrow.DataType) -> bool:
    types = _arrow().types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _filled(array: pyarrow.Array) -> np.ndarray[Any, Any]:
    if array.null_count:
        array = array.fill_null(False if _arrow().types.is_boolean(array.type) else 0)
    values: np.ndarray[Any, Any] = array.to_numpy(zero_copy_only=False)
    return values


def _missing(array: pyarrow.Array) -> Mask:
    mask: Mask = array.is_null().to_numpy(zero_copy_only=False)
    return mask


def _arrow() -> Any:
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError(
            "Parquet files are read with PyArrow, which is not installed; "
            "run: pip install 'edl-horovod[parquet]'"
        ) from error
    return pyarrow


def _damage() -> tuple[type[Exception], ...]:
    return _arrow().ArrowException, OSError, ValueError, OverflowError


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
