"""What one pass over a file found, made once and kept in the user's cache.

The cache is ``$XDG_CACHE_HOME/edl/data`` and never a place beside the data: data folders are
often read-only or shared by hosts whose locks do not reach each other, and ``data/*`` must not
match an index tomorrow that was not there today. The price: each host makes one pass.

An index is named by the file's real path, its kind and its options; it belongs to the size and
the modification time that it shows. One that is torn, foreign, of another version or of an
earlier state of the file is made again. It is written under another name and renamed, so nobody
reads half of one; a lock lets one process of the host make it while the others wait. The lock
only saves work: after its deadline, or where there is none, a process makes the index by itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import google_crc32c
import numpy as np
import numpy.typing as npt
from filelock import FileLock

from edl import config
from edl.data.files import Stamp
from edl.errors import ConfigError, DataError, UsageError

logger = logging.getLogger(__name__)

VERSION = 1  # of everything below; another one is made again
MAGIC = b"edl-index"
LOCK_WAIT_S = 120.0

OnError = Literal["error", "skip"]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Skipped:
    """A part of a file that is left out, and why."""

    offset: int
    bytes: int
    reason: str


@dataclass(frozen=True)
class Index:
    """``arrays`` are 1-D; their names and ``facts`` (JSON values) are the business of a kind."""

    arrays: Mapping[str, Integers] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    skipped: tuple[Skipped, ...] = ()

    def digest(self) -> int:
        """Equal for indexes that find the same records, on every host.

        The reasons of what is skipped do not enter: libraries change their words.
        """
        places = [(one.offset, one.bytes) for one in self.skipped]
        crc = google_crc32c.value(json.dumps([self.facts, places], sort_keys=True).encode())
        for name in sorted(self.arrays):
            crc = google_crc32c.extend(crc, self.arrays[name].astype("<i8").tobytes())
        return int(crc)

    def payload(self) -> bytes:
        """All that it says, for :meth:`of_payload`."""
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
    """A file and its index."""

    path: str
    stamp: Stamp
    index: Index


def check_policy(on_error: str) -> None:
    """Raises UsageError unless it is one of the two."""
    if on_error not in ("error", "skip"):
        raise UsageError(f"on_error is {on_error!r}; it is 'error' or 'skip'")


def index_of(
    path: str, kind: str, make: Callable[[str, int], Index], lock_wait_s: float = LOCK_WAIT_S
) -> Indexed:
    """The index of ``path``, from the cache or by ``make(path, size)``.

    Args:
        kind: what ``make`` depends on beside the file: the kind of file and its options.
        lock_wait_s: for another process that makes the same index.

    Raises:
        DataError: the file cannot be read, changes while it is read, or ``make`` refuses it.
    """
    stamp = Stamp.of(path)
    try:
        place = _Place(path, kind)
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


class _Place:
    """Where the index of one file is kept.

    Raises:
        ConfigError, OSError: the cache is not usable.
    """

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
        about = [VERSION, self._kind, os.path.realpath(self._path), stamp.size, stamp.mtime_ns]
        about += [len(payload), google_crc32c.value(payload)]
        return MAGIC + json.dumps(about).encode() + b"\n"

    def read(self, stamp: Stamp) -> Indexed | None:
        """The index, if there is a sound one of the file as it is now."""
        try:
            data = self._file.read_bytes()
        except OSError:
            return None
        payload = data[data.find(b"\n") + 1 :]
        if not data.startswith(self._head(stamp, payload)):
            return None
        return Indexed(self._path, stamp, Index.of_payload(payload))

    def write(self, made: Indexed) -> None:
        """Keep an index, if that is possible, and remove what was left of attempts to do so.

        Who is at such an attempt this very moment does not keep its own, which says the same.
        """
        payload = made.index.payload()
        fresh = self._file.with_suffix(f".{uuid.uuid4().hex}.new")
        try:
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
        """Hold the lock, if that is possible within ``wait_s``; the kernel frees it, too."""
        lock = FileLock(self._lock, wait_s, fallback_to_soft=False)
        try:
            lock.acquire()
        except OSError as error:  # a time-out, or a file system without locks
            logger.info("the index of %s is made without its lock: %s", self._path, error)
        try:
            yield
        finally:
            lock.release()  # if it is held
