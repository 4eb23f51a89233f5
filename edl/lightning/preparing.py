"""Let the workers of a host prepare their data one after another: :class:`PreparationLock`."""

from __future__ import annotations

import os
import tempfile
import zlib
from pathlib import Path

from filelock import FileLock, Timeout

from edl.errors import UsageError

PREPARE_TIMEOUT_S = 3600.0  # for the other workers of the host, which may download


class PreparationLock:
    """A lock of all workers on this host that run one script as one user, for `prepare_data`."""

    def __init__(self, script: str, timeout_s: float = PREPARE_TIMEOUT_S) -> None:
        number = zlib.crc32(str(Path(script).resolve()).encode())
        name = f"edl-prepare-data-{os.getuid()}-{number:08x}.lock"
        # The system releases it when a process dies.
        self._lock = FileLock(Path(tempfile.gettempdir()) / name, timeout=timeout_s)
        self._timeout_s = timeout_s

    @property
    def is_held(self) -> bool:
        return self._lock.is_locked

    def acquire(self) -> None:
        try:
            self._lock.acquire()
        except Timeout as error:
            raise UsageError(
                f"the workers of this host call prepare_data one after another, and one of them "
                f"has not ended it in {self._timeout_s:g} s; prepare the data in a script of its "
                "own, before the job"
            ) from error

    def release(self) -> None:
        if self._lock.is_locked:
            self._lock.release()
