"""Open the directory of checkpoints: a local one, or one of another file system, by a URL.

A :class:`RemotePath` has those methods of a path that the rest of this package calls. The library
fsspec knows the file systems; it is imported for URLs only. Two promises are weaker than locally:
a file appears whole or not at all only where the file system can defer its end (fsspec's
``autocommit=False``), as object stores do (reading notices half a file by length and checksums);
and what is written is as durable as the file system makes it, without ``fsync``.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from os import PathLike, fspath
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeVar
from urllib.parse import unquote

from edl.errors import EdlError, UsageError

# ------------------------------------------------------------
# Find the disk of a file: the place where the disk is mounted (`mount_point`).


def mount_point(path: str | Path) -> str:
    # Events name it, so that several failures on one full disk are known to be one.
    found = Path(os.path.realpath(path))
    return str(next(one for one in (found, *found.parents) if os.path.ismount(one)))


_URL = re.compile(r"([a-zA-Z][\w+.-]*)((::[\w+.-]+)*)://")  # also chained: simplecache::s3://
_SHORTENED = re.compile(r"[a-zA-Z][\w+.-]+(::[\w+.-]+)*:/(?!/)")  # what Path leaves of a URL
_LOCAL = ("file", "local")
_IN_MEMORY = "memory"
INSTALL = "pip install 'edl-horovod[fsspec]'"


@dataclass(frozen=True)
class RemotePath:
    """The path of a file or directory in a file system of fsspec; all its errors are OSErrors."""

    url: str  # as messages and records have it
    within: str  # the path in the file system
    system: Any = field(compare=False, repr=False)

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(f"{self.url.rstrip('/')}/{name}", self._child(name), self.system)

    def _child(self, name: str) -> str:
        return f"{self.within.rstrip('/')}/{name}"

    @property
    def name(self) -> str:
        return PurePosixPath(self.within).name

    @property
    def parent(self) -> RemotePath:
        url, within = self.url.rstrip("/"), self.within.rstrip("/")
        return RemotePath(url.rpartition("/")[0], within.rpartition("/")[0], self.system)

    def absolute(self) -> RemotePath:
        return self

    @property
    def is_of_one_process(self) -> bool:
        """Whether only this process sees the file system, because it lies in its memory."""
        return self.url.lower().startswith(f"{_IN_MEMORY}:")

    def names(self) -> list[str]:
        with _as_os_errors(self):
            self.system.invalidate_cache()
            try:
                found = self.system.ls(self.within, detail=False)
            except FileNotFoundError:
                return []
        return [PurePosixPath(one.rstrip("/")).name for one in found]

    def is_dir(self) -> bool:
        """Return whether this is a directory, or the beginning of the names of files."""
        with _as_os_errors(self):
            self.system.invalidate_cache()
            return bool(self.system.isdir(self.within))

    @contextmanager
    def open(self, mode: str = "rb") -> Iterator[BinaryIO]:
        """Provide the file, opened for reading bytes, while entered; `mode` must be "rb"."""
        assert mode == "rb"
        with _as_os_errors(self):
            self.system.invalidate_cache()
            with self.system.open(self.within, "rb") as opened:
                yield opened

    @property
    def size(self) -> int:
        with _as_os_errors(self):
            return int(self.system.info(self.within)["size"])

    @property
    def modified_s(self) -> float:
        """When the file was last changed, in seconds since 1970, by the file system's clock."""
        with _as_os_errors(self):
            return float(self.system.modified(self.within).timestamp())

    def read_text(self, encoding: str = "utf-8") -> str:
        with _as_os_errors(self):
            self.system.invalidate_cache()
            contents: bytes = self.system.cat_file(self.within)
            return contents.decode(encoding)

    def unlink(self, missing_ok: bool = False) -> None:
        with _as_os_errors(self):
            try:
                self.system.rm_file(self.within)
            except FileNotFoundError:
                if not missing_ok:
                    raise

    def make_directory(self) -> None:
        with _as_os_errors(self):
            self.system.makedirs(self.within, exist_ok=True)

    def write_whole(self, chunks: Iterable[bytes | memoryview], check: Callable[[], None]) -> int:
        """Write the file, whole or not at all where that can be, and return its size in bytes."""
        with _as_os_errors(self):
            with self._deferred() as file:
                size = sum(_written(file, chunk) for chunk in chunks)
                file.close()
                check()
            self.system.invalidate_cache()
            if (found := int(self.system.info(self.within)["size"])) != size:
                raise OSError(errno.EIO, f"{size} bytes were written, and {found} are there")
        return size

    @contextmanager
    def _deferred(self) -> Iterator[Any]:
        """Provide the file for writing; it appears at the end of the block, unless that fails."""
        if self.is_of_one_process:
            # The file system in memory has transactions only, which count for all its files.
            with self.system.transaction, self.system.open(self.within, "wb") as file:
                yield file
            return
        file = self.system.open(self.within, "wb", autocommit=False)
        with suppress(ValueError):  # this file is no part of a transaction, which would keep it
            self.system.transaction.files.remove(file)
        try:
            yield file
        except BaseException:
            _end(file, "discard")
            raise
        _end(file, "commit")


Location = Path | RemotePath
"""The place of a checkpoint or of a directory of checkpoints."""


def location(path: str | PathLike[str]) -> Location:
    text = fspath(path)
    if _SHORTENED.match(text):
        raise UsageError(
            f"{text}: pathlib has taken slashes from a URL: give the text of the URL, not a Path "
            "(argparse: type=str); for a local directory of this name give its absolute path"
        )
    found = _URL.match(text)
    if found is None:
        return Path(text)
    if found[1].lower() in _LOCAL and not found[2]:
        return Path(_local_path(text))
    try:
        fsspec = import_module("fsspec")
    except ModuleNotFoundError:
        raise UsageError(
            f"{text} needs the package fsspec, which is not installed here: {INSTALL}"
        ) from None
    try:
        system, within = fsspec.core.url_to_fs(text)
    except ImportError as error:  # it says what to install, such as s3fs
        raise UsageError(f"{text} needs a further package: {error}") from None
    except ValueError as error:
        raise UsageError(
            f"{text} cannot be opened: {error}; write a local path, or a URL that fsspec knows"
        ) from None
    return RemotePath(text.rstrip("/"), within, system)


def file_bytes(path: Location) -> int:
    return path.size if isinstance(path, RemotePath) else path.stat().st_size


def modified_s(path: Location) -> float:
    return path.modified_s if isinstance(path, RemotePath) else path.stat().st_mtime


def _local_path(url: str) -> str:
    path = unquote(url.partition("://")[2])
    return path.removeprefix("localhost") if path.startswith("localhost/") else path


def _written(file: Any, chunk: bytes | memoryview) -> int:
    file.write(chunk)
    return memoryview(chunk).nbytes


def _end(file: Any, how: str) -> None:
    method = getattr(file, how, None)
    if method is not None:
        method()


@contextmanager
def _as_os_errors(path: RemotePath) -> Iterator[None]:
    """Raise errors of the library of a file system, such as botocore's, as OSError."""
    try:
        yield
    except OSError as error:  # many file systems give no number
        other = errno.ENOENT if isinstance(error, FileNotFoundError) else errno.EIO
        raise OSError(error.errno or other, error.strerror or str(error), path.url) from error
    except EdlError:
        raise
    except Exception as error:  # each file system has a library of its own, with its own errors
        raise OSError(errno.EIO, f"{type(error).__name__}: {error}", path.url) from error


# ------------------------------------------------------------
# Look into a directory of checkpoints, and give up when that takes too long: `looked`.

LOOK_S = 2.0  # for a look into the directory between two steps: all workers wait
T = TypeVar("T")


def looked(look: Callable[[], T], limit_s: float, otherwise: T) -> T:
    """Return what `look` returns, or `otherwise` if that takes longer than `limit_s` seconds."""
    # In a thread: on a file server that is away, `look`, which must raise no error, may take for
    # ever.
    found: list[T] = []
    thread = threading.Thread(
        target=lambda: found.append(look()), name="edl-checkpoint-look", daemon=True
    )
    thread.start()
    thread.join(limit_s)
    return found[0] if found else otherwise
