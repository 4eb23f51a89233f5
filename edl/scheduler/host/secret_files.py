"""Give the secrets for which jobs ask to their commands, as files that only this user can read.

Each run of a job has a directory of its own, in memory where the system has such a file system
(``/dev/shm``). The directories are found again by their names, so nothing about them is kept in
memory: the next `edl host` removes those that a former one has left.

Every user can write to ``/dev/shm``, and put a link or a directory there. So the directory that has
those of the runs ends with a random text, which nobody knows before, and is found by what it begins
with. Only what belongs to this user alone counts. It is opened once, and what is removed is removed
within the opened directory, whatever has taken its place meanwhile.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

logger = logging.getLogger(__name__)

SECRETS_VARIABLE = "EDL_SECRETS_DIR"
_MEMORY = Path("/dev/shm")
_DIGITS = 16


def secret_root(mark: str, state: Path, memory: Path = _MEMORY) -> Path:
    """Return how the path of the directory for the secrets on one host of one cluster begins."""
    name = f"edl-secrets-{hashlib.sha256(mark.encode()).hexdigest()[:_DIGITS]}"
    usable = memory.is_dir() and os.access(memory, os.W_OK | os.X_OK)
    return (memory if usable else state) / name


class SecretFiles:
    """The directories with the secrets of the runs on one host."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def write(
        self,
        job: str,
        run: str,
        contents: Mapping[str, bytes],
        owner: tuple[int, int] | None = None,
    ) -> Path:
        """Write the secrets of a run, each into a file of its name; return their directory."""
        self._root.parent.mkdir(parents=True, exist_ok=True)
        found = [path for path, _ in self._directories()]
        begin, place = f"{self._root.name}-", self._root.parent
        root = found[0] if found else Path(tempfile.mkdtemp(prefix=begin, dir=place))
        directory = root / _name(job, run)
        directory.mkdir(mode=0o700, exist_ok=True)
        for old in directory.iterdir():
            if old.name not in contents:
                old.unlink()
        for name, content in contents.items():
            new = directory / f".{name}"
            new.unlink(missing_ok=True)
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o400)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                if owner is not None:
                    os.fchown(descriptor, *owner)
            new.rename(directory / name)
        if owner is not None:  # it can be entered, not listed or changed
            root.chmod(0o711)
            directory.chmod(0o711)
        return directory

    def keep_only(self, runs: Collection[tuple[str, str]]) -> None:
        """Remove the secrets of all runs but `runs`, as (job, run); a failure is only logged."""
        kept = {_name(job, run) for job, run in runs}
        for root, descriptor in self._directories():
            try:
                for name in os.listdir(descriptor):
                    if name not in kept:
                        shutil.rmtree(name, dir_fd=descriptor)
                if not kept:
                    root.rmdir()
            except OSError as error:
                logger.warning("secrets of a run that has ended cannot be removed: %s", error)

    def _directories(self) -> Iterator[tuple[Path, int]]:
        """Open each directory of this user alone whose path begins with that of this object."""
        for path in sorted(self._root.parent.glob(f"{self._root.name}*")):
            try:
                descriptor = os.open(path, os.O_DIRECTORY | os.O_NOFOLLOW)
            except OSError:  # it is a link, or no directory, or another user's
                continue
            try:
                found = os.fstat(descriptor)
                if found.st_uid == os.geteuid() and not stat.S_IMODE(found.st_mode) & 0o066:
                    yield path, descriptor  # closed when the next one is asked for
            finally:
                os.close(descriptor)


def _name(job: str, run: str) -> str:
    return f"{job}+{run}"
