"""Open the files of a log as a process that may read more than the user who wrote them.

The user of a job's workers owns the directory of their logs, and may put anything there: a link to
a secret of root's, a link in place of a directory, a pipe that nobody writes. So no link is
followed, nothing waits, and what was opened is asked for its owner, not the path.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from edl.launch.log_reader import former

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@dataclass(frozen=True)
class LogOwner:
    """Whose files are read as a job's logs, and where."""

    # a directory in which the logs lie, or directories of logs; no link is followed below
    below: Path
    uid: int  # the number of the user who must own each file


def open_log(log: Path, owner: LogOwner | None, stack: ExitStack) -> dict[int, BinaryIO]:
    """Return the open files of a log, the older one first, by their inode numbers."""
    directory = stack.enter_context(_directory(log, owner))
    found = {}
    for name in (log.name, former(log).name):  # if it is renamed meanwhile, none is missed
        try:
            file = stack.enter_context(os.fdopen(os.open(name, _READ, dir_fd=directory), "rb"))
        except FileNotFoundError:
            continue
        about = os.fstat(file.fileno())
        if not _is_log(about, owner):
            raise PermissionError(f"{log} belongs to another user, or is no file")
        found[about.st_ino] = file
    if not found:
        raise FileNotFoundError(f"there is no log {log}")
    return dict(reversed(found.items()))


def bytes_in(log: Path, owner: LogOwner | None = None) -> int | None:
    """Return the bytes in a log and its older file; None if `open_log` would refuse it."""
    sizes = []
    try:
        with _directory(log, owner) as directory:
            for name in (log.name, former(log).name):
                try:
                    about = os.stat(name, dir_fd=directory, follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if not _is_log(about, owner):
                    return None
                sizes.append(about.st_size)
    except OSError:
        return None
    return sum(sizes) if sizes else None


def _is_log(about: os.stat_result, owner: LogOwner | None) -> bool:
    return stat.S_ISREG(about.st_mode) and (owner is None or about.st_uid == owner.uid)


@contextmanager
def _directory(log: Path, owner: LogOwner | None) -> Iterator[int]:
    """Open the directory of a log, without following a link below that of its `owner`."""
    above = log.parent if owner is None else owner.below
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY
    found = os.open(above, flags)
    try:
        for part in log.parent.relative_to(above).parts:
            inner = os.open(part, flags | os.O_NOFOLLOW, dir_fd=found)
            os.close(found)
            found = inner
        yield found
    finally:
        os.close(found)
