"""Read a worker's log while the worker appends to it and, from time to time, begins a new one.

The worker (:mod:`edl.job.pending_writes`) then renames the old file to what :func:`former` returns.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from edl.host.process import FORMER_LOG

TAIL_BYTES = 2000  # of a worker's output, which stay in the event of its end
_MISSED = b"\nedl: what the worker has written here is gone: nobody read it in time\n"


class LogReader:
    def __init__(self, path: Path, from_now: bool = False) -> None:
        self._path = path
        self._file: BinaryIO
        if from_now:
            self._file = path.open("rb")
            self._file.seek(0, os.SEEK_END)
            return
        try:
            self._file = former(path).open("rb")
        except FileNotFoundError:
            self._file = path.open("rb")

    def read(self, max_bytes: int) -> bytes:
        """Return the next bytes of the log, without a wait; a line says if files were missed."""
        # Asked first: what comes later is in the new one.
        new = self._path.exists() and not self._is_file(self._path)
        if (content := self._file.read(max_bytes)) or not new:
            return content
        missed = not self._is_file(former(self._path))
        self._file.close()
        self._file = self._path.open("rb")
        content = self._file.read(max_bytes)
        return _MISSED + content if missed else content

    def close(self) -> None:
        self._file.close()

    def _is_file(self, path: Path) -> bool:
        """Return whether `path` names the file that this reader has open; False if it is gone."""
        try:
            return os.path.samestat(os.fstat(self._file.fileno()), path.stat())
        except OSError:  # the file was removed
            return False


def former(path: Path) -> Path:
    return path.with_name(path.name + FORMER_LOG)


def last_output(path: Path, max_bytes: int = TAIL_BYTES) -> str:
    """Return the end of a worker's log as text: whole lines, at most `max_bytes` bytes of them."""
    content = b""
    for file in (path, former(path)):
        lacking = max_bytes + 1 - len(content)
        if lacking > 0:
            content = _end_of(file, lacking) + content
    if len(content) > max_bytes:
        whole = content.partition(b"\n")[2]
        content = whole or content[1:]
    return content.decode(errors="replace").rstrip("\n")


def _end_of(path: Path, max_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - max_bytes))
            return file.read(max_bytes)
    except OSError:
        return b""


# ------------------------------------------------------------
# The logs of a job, by worker.


def named_logs(directory: Path) -> dict[str, Path]:
    """Return the paths of the worker logs in `directory`, by the name of the worker, like "w3"."""
    # By the id of its start attempt, if it never registered or another worker has the name now.
    links = {
        os.path.realpath(path): path.stem for path in directory.glob("*.log") if path.is_symlink()
    }
    found = [path for path in directory.glob("*.log") if not path.is_symlink()]
    named = {links.get(os.path.realpath(path), path.stem): path for path in found}
    return {name: named[name] for name in sorted(named, key=lambda name: (len(name), name))}
