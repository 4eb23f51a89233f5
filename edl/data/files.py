"""Find the files of a data set, in the same order on every host, and read them.

:func:`resolve` finds them; :class:`Readable` reads one of them, :class:`Stamp` tells whether it has
changed, and :class:`PerProcess` keeps open files.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import logging
import os
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

import google_crc32c
import numpy as np
import numpy.typing as npt
from filelock import FileLock

from edl import config
from edl.errors import ConfigError, DataError, UsageError

logger = logging.getLogger(__name__)
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


def refuse_compressed(path: str, or_zlib: bool = False) -> None:
    """Raise a DataError if a file is compressed: a user's mistake, and no damage to skip."""
    with open(path, "rb") as file:
        head = file.read(16)
    found = [name for name, (at, sign) in SIGNATURES.items() if head.startswith(sign, at)]
    if or_zlib and head[:1] == b"\x78" and int.from_bytes(head[:2], "big") % 31 == 0:
        found = ["zlib"]
    for compression in found:
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
        data = bytearray(length)
        self.read_into(memoryview(data), offset)
        return bytes(data)

    def read_into(self, buffer: memoryview, offset: int) -> None:
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


# ------------------------------------------------------------
# Index a file in one pass over it, and keep the index in the user's cache directory.
#
# `index_of` returns a file with its index, from the cache if it is there.
#
# An index says where the records of the file lie. The cache is `$XDG_CACHE_HOME/edl/data` and never
# a place beside the data: data folders are often read-only, or shared by hosts whose locks do not
# reach each other, and a pattern such as `data/*` must not match index files. The price is that
# each host reads the whole file once.
#
# An index is named by the file's real path, its kind and its options, and contains the size and the
# modification time of the file. An index that is torn, of another file, of another version or of an
# earlier state of the file is made again. It is written under another name and renamed, so nobody
# reads half of one. One process of the host locks the index and makes it, while the others wait. If
# a process cannot get the lock in time, or the file system has no locks, the process makes the
# index as well, with the same result.

VERSION = 1  # of everything below; another one is made again
MAGIC = b"edl-index"
LOCK_WAIT_S = 120.0
OnError = Literal["error", "skip"]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Skipped:
    """A range of bytes of a file that is left out of the data, and the reason.

    Attributes:
        offset: the first byte of the range.
        bytes: the length of the range in bytes.
        reason: why it is left out, for messages.
    """

    offset: int
    bytes: int
    reason: str


@dataclass(frozen=True)
class Index:
    # by name, one-dimensional, such as the first byte of each record
    arrays: Mapping[str, Integers] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)  # JSON values, such as types of columns
    skipped: tuple[Skipped, ...] = ()

    def digest(self) -> int:
        """Return a CRC-32C of the index that is equal, on every host, for equal indexes."""
        # The reasons do not enter: libraries change their words.
        places = [(one.offset, one.bytes) for one in self.skipped]
        crc = google_crc32c.value(json.dumps([self.facts, places], sort_keys=True).encode())
        for name in sorted(self.arrays):
            crc = google_crc32c.extend(crc, self.arrays[name].astype("<i8").tobytes())
        return int(crc)

    def payload(self) -> bytes:
        head = {
            "arrays": {name: len(array) for name, array in sorted(self.arrays.items())},
            "facts": self.facts,
            "skipped": [[one.offset, one.bytes, one.reason] for one in self.skipped],
        }
        parts = [self.arrays[name].astype("<i8").tobytes() for name in sorted(self.arrays)]
        return b"".join([json.dumps(head, sort_keys=True).encode(), b"\n", *parts])

    @classmethod
    def of_payload(cls, payload: bytes) -> Index:
        line = payload.index(b"\n") + 1
        head = json.loads(payload[:line])
        arrays, offset = {}, line
        for name, length in head["arrays"].items():
            arrays[name] = np.frombuffer(payload, "<i8", length, offset).astype(np.int64)
            offset += 8 * length
        return cls(arrays, head["facts"], tuple(Skipped(*one) for one in head["skipped"]))


@dataclass(frozen=True)
class Indexed:
    """A file with its index, as `index_of` returns it."""

    path: str
    stamp: Stamp  # when it was indexed
    index: Index


def check_policy(on_error: str) -> None:
    """Check that `on_error` is `"error"` (damaged data raise) or `"skip"` (are left out)."""
    if on_error not in ("error", "skip"):
        raise UsageError(f"on_error is {on_error!r}; it is 'error' or 'skip'")


def index_of(
    path: str, kind: str, make: Callable[[str, int], Index], lock_wait_s: float = LOCK_WAIT_S
) -> Indexed:
    """Return a file with its index, from the cache or made by `make(path, size)`."""
    stamp = Stamp.of(path)
    try:
        place = _IndexPath(path, kind)
    except (OSError, ConfigError) as error:
        logger.info("%s: its index cannot be kept: %s", path, error)
        return _made(path, kind, stamp, make)
    if found := place.read(stamp):
        return found
    with place.locked(lock_wait_s):
        if found := place.read(stamp):
            return found
        made = _made(path, kind, stamp, make)
        place.write(made)
        return made


def _made(path: str, kind: str, stamp: Stamp, make: Callable[[str, int], Index]) -> Indexed:
    began = time.monotonic()
    try:
        index = make(path, stamp.size)
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    if Stamp.of(path) != stamp:
        raise DataError(f"{path} was changed while it was being indexed; try again when it is done")
    logger.info("indexed %s as %s in %.2f s", path, kind, time.monotonic() - began)
    return Indexed(path, stamp, index)


class _IndexPath:
    """The place in the cache directory where the index of one file is kept, and its lock."""

    def __init__(self, path: str, kind: str) -> None:
        self._path, self._kind = path, kind
        folder = config.cache_dir() / "data"
        folder.mkdir(exist_ok=True)
        name = os.fsencode(f"{kind}\n{os.path.realpath(path)}")
        key = hashlib.sha256(name).hexdigest()[:32]
        self._file = folder / f"{key}.index"
        # Files share 256 locks, so that the folder does not fill with them; nobody removes one.
        self._lock = folder / f"{key[:2]}.lock"

    def _head(self, stamp: Stamp, payload: bytes) -> bytes:
        """Return the first line: what the index belongs to, and a checksum; else it is outdated."""
        about = [VERSION, self._kind, os.path.realpath(self._path), stamp.size, stamp.mtime_ns]
        about += [len(payload), google_crc32c.value(payload)]
        return MAGIC + json.dumps(about).encode() + b"\n"

    def read(self, stamp: Stamp) -> Indexed | None:
        try:
            data = self._file.read_bytes()
        except OSError:
            return None
        payload = data[data.find(b"\n") + 1 :]
        if not data.startswith(self._head(stamp, payload)):
            return None
        return Indexed(self._path, stamp, Index.of_payload(payload))

    def write(self, made: Indexed) -> None:
        payload = made.index.payload()
        fresh = self._file.with_suffix(f".{uuid.uuid4().hex}.new")
        try:
            # That of another process may be removed, whose write then fails; the indexes are equal.
            for left in self._file.parent.glob(f"{self._file.stem}.*.new"):
                left.unlink(missing_ok=True)
            fresh.write_bytes(self._head(made.stamp, payload) + payload)
            fresh.replace(self._file)
        except OSError as error:
            logger.info("the index of %s cannot be kept: %s", self._path, error)
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)

    @contextlib.contextmanager
    def locked(self, wait_s: float) -> Iterator[None]:
        """Hold the lock during the block, or run it without, if it cannot be had in time."""
        lock = FileLock(self._lock, wait_s, fallback_to_soft=False)
        try:
            lock.acquire()
        except OSError as error:  # a time-out, or a file system without locks
            logger.info("the index of %s is made without its lock: %s", self._path, error)
        try:
            yield
        finally:
            lock.release()  # if it is held
