"""A worker's log, read on while the worker begins new files (see :mod:`edl.daemon.own_log`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from edl.core.host.process import FORMER_LOG

_MISSED = b"\nedl: what the worker has written here is gone: nobody read it in time\n"


class LogReader:
    """What is in the log, and then what comes.

    Args:
        path: of the log.
        from_now: only what comes. Otherwise it begins with the file before this one, if there is
            one.

    Raises:
        OSError: it cannot be read; also from :meth:`read`.
    """

    def __init__(self, path: Path, from_now: bool = False) -> None:
        self._path = path
        self._file = self._oldest() if not from_now else path.open("rb")
        if from_now:
            self._file.seek(0, os.SEEK_END)

    def read(self, most_bytes: int) -> bytes:
        """The next bytes; empty: there is no more for now."""
        new = self._has_new_file()  # asked first: what comes later is in the new one
        if (found := self._file.read(most_bytes)) or not new:
            return found
        missed = not self._is_file(former(self._path))
        self._file.close()
        self._file = self._path.open("rb")
        found = self._file.read(most_bytes)
        return _MISSED + found if missed else found

    def close(self) -> None:
        self._file.close()

    def _oldest(self) -> BinaryIO:
        try:
            return former(self._path).open("rb")
        except FileNotFoundError:
            return self._path.open("rb")

    def _has_new_file(self) -> bool:
        return self._path.exists() and not self._is_file(self._path)

    def _is_file(self, path: Path) -> bool:
        """Whether the file that is read has the name ``path``."""
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), path.stat())
        except OSError:  # somebody has tidied up
            return False


def former(path: Path) -> Path:
    """The file that was the log before ``path``."""
    return path.with_name(path.name + FORMER_LOG)
