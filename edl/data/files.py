"""Find the files of a data set, in the same order on every host, and read them.

:func:`resolve` finds them; :class:`Readable` reads one of them, :class:`Stamp` tells whether it has
changed, and :class:`PerProcess` keeps open files.
"""

from __future__ import annotations

import glob
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from edl.errors import DataError

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

OPEN_FILES = 128  # kept open by one source in one process
SIGNATURES = {  # (offset, bytes) by which a compressed file is known
    "gzip": (0, b"\x1f\x8b\x08"),
    "zstd": (0, b"\x28\xb5\x2f\xfd"),
    "bzip2": (4, b"1AY&SY"),
    "xz": (0, b"\xfd7zXZ\x00"),
}

Opened = TypeVar("Opened")


def resolve(paths: Paths) -> tuple[str, ...]:
    """Return the absolute paths of the files that `paths` names, sorted as strings."""
    if isinstance(paths, str | os.PathLike):
        paths = (paths,)
    wanted = [os.fspath(each) for each in paths]
    if not wanted:
        raise DataError("no files are named; a source needs at least one")
    found = sorted(os.path.abspath(file) for each in wanted for file in _named(each))
    real: dict[str, str] = {}
    for file in found:
        other = real.setdefault(os.path.realpath(file), file)
        if other is not file:
            raise DataError(
                f"{file} is named twice{'' if other == file else f' (it is {other}, too)'}; its "
                "records would be trained twice an epoch"
            )
    return tuple(found)


def _named(path: str) -> list[str]:
    """Return the files that `path`, a path or a glob pattern, names; in no special order."""
    if os.path.isdir(path):
        raise DataError(f"{path} is a folder; name its files, like {os.path.join(path, '*')}")
    if os.path.isfile(path):
        return [path]
    if os.path.exists(path):
        raise DataError(f"{path} is no regular file; copy its content into one")
    if not glob.has_magic(path):
        raise DataError(f"there is no file {os.path.abspath(path)} on this host")
    # With "**" twice, glob finds a file as often as there are ways to it.
    found = [file for file in set(glob.glob(path, recursive=True)) if os.path.isfile(file)]
    if not found:
        raise DataError(f"no file matches {os.path.abspath(path)} on this host")
    return found


def compression_of(head: bytes) -> str | None:
    """Return "gzip", "zstd", "bzip2" or "xz" if a file begins like one of these; else None."""
    for name, (offset, signature) in SIGNATURES.items():
        if head[offset : offset + len(signature)] == signature:
            return name
    return None


def refuse_compressed(path: str, or_zlib: bool = False) -> None:
    """Raise a DataError if a file is compressed: a user's mistake, and no damage to skip."""
    with open(path, "rb") as file:
        head = file.read(16)
    compression = compression_of(head)
    if or_zlib and head[:1] == b"\x78" and int.from_bytes(head[:2], "big") % 31 == 0:
        compression = "zlib"
    if compression:
        raise DataError(
            f"{path} is compressed ({compression}); records are read by offset, which needs an "
            "uncompressed file: unpack it"
        )


@dataclass(frozen=True)
class Stamp:
    """The size and the modification time of a file: if both are equal, it counts as unchanged."""

    size: int  # in bytes
    mtime_ns: int  # since 1970

    @classmethod
    def of(cls, file: str | int) -> Stamp:
        """Return the present stamp of `file`, a path or an open file's descriptor."""
        try:
            status = os.stat(file)
        except OSError as error:
            raise DataError(f"cannot read {file}: {error.strerror}") from error
        return cls(status.st_size, status.st_mtime_ns)


class Readable:
    """An open file that is read at given offsets, so forks and threads may use the same object."""

    # A file that is cut off raises a DataError; mapped into memory it would crash the process.
    def __init__(self, path: str, stamp: Stamp) -> None:
        self.path = path
        self._descriptor = -1
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}") from error
        now = Stamp.of(self._descriptor)
        if now != stamp:
            raise DataError(
                f"{path} has changed since the job began to read it: it had {stamp.size} bytes "
                f"and has {now.size}{' of a later time' if now.size == stamp.size else ''}; "
                "start the job again"
            )

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    def read(self, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes of the file, from byte `offset` on."""
        data = bytearray(length)
        self.read_into(memoryview(data), offset)
        return bytes(data)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill all of `buffer` (bytes) with the bytes of the file from byte `offset` on."""
        done = 0
        while done < len(buffer):
            try:
                count = os.preadv(self._descriptor, [buffer[done:]], offset + done)
            except OSError as error:
                raise DataError(
                    f"cannot read {self.path} at byte {offset + done}: {error.strerror}"
                ) from error
            if count == 0:
                raise DataError(f"{self.path} was cut at byte {offset + done} while it was read")
            done += count


class PerProcess(Generic[Opened]):
    """A cache of objects, such as open files, of one process; forks and copies begin empty."""

    def __init__(self, limit: int, weigh: Callable[[Opened], int] | None = None) -> None:
        self._limit = limit
        self._weigh = weigh
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._held: OrderedDict[Any, Opened] = OrderedDict()
        self._weight = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._limit, self._weigh)

    def get(self, key: Any, make: Callable[[], Opened]) -> Opened:
        """Return the cached object of `key`; if there is none, cache and return `make()`."""
        if self._process != os.getpid():
            self._begin()
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key]
        # Two threads may both make it; one is kept.
        made = make()
        with self._lock:
            if key not in self._held:
                self._held[key] = made
                self._weight += self._weight_of(made)
            while self._weight > self._limit and len(self._held) > 1:
                _, oldest = self._held.popitem(last=False)
                self._weight -= self._weight_of(oldest)
        return made

    def _weight_of(self, thing: Opened) -> int:
        return self._weigh(thing) if self._weigh else 1
