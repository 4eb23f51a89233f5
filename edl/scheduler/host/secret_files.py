"""Give the secrets for which jobs ask to their commands, as files that only this user can read.

Each run of a job has a directory of its own, in memory where the system has such a file system
(``/dev/shm``). The directories are found again by their names, so nothing about them is kept in
memory: the next `edl host` removes those that a former one has left.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import stat
from collections.abc import Collection, Mapping
from pathlib import Path

logger = logging.getLogger(__name__)

SECRETS_VARIABLE = "EDL_SECRETS_DIR"
_MEMORY = Path("/dev/shm")
_DIGITS = 16


def secret_root(mark: str, state: Path, memory: Path = _MEMORY) -> Path:
    """Return the directory for the secrets of the jobs on one host of one cluster.

    Args:
        mark: the mark of the host's processes, which no other host on this machine has.
        state: the state directory of edl, for a machine that has no file system in memory.
        memory: the directory of the file system in memory.
    """
    name = f"edl-secrets-{hashlib.sha256(mark.encode()).hexdigest()[:_DIGITS]}"
    usable = memory.is_dir() and os.access(memory, os.W_OK | os.X_OK)
    return (memory if usable else state) / name


class SecretFiles:
    """The directories with the secrets of the runs on one host.

    Args:
        root: the directory that has them; it is created when it is needed.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def write(
        self,
        job: str,
        run: str,
        contents: Mapping[str, bytes],
        owner: tuple[int, int] | None = None,
    ) -> Path:
        """Write the secrets of a run, each into a file of its name; return their directory.

        Files of the same run are replaced, and those of other names removed.

        Args:
            job: the name of the job.
            run: the token of the run.
            contents: the content of each secret, by name.
            owner: the numbers of the user and the group who alone can read them; None: this user.

        Raises:
            OSError: a file cannot be written, or the directory belongs to another user.
        """
        self._make_private(self._root)
        directory = self._root / _name(job, run)
        self._make_private(directory)
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
            self._root.chmod(0o711)
            directory.chmod(0o711)
        return directory

    def keep_only(self, runs: Collection[tuple[str, str]]) -> None:
        """Remove the secrets of all runs but ``runs``, as (job, run); a failure is only logged."""
        if not self._root.is_dir():
            return
        kept = {_name(job, run) for job, run in runs}
        try:
            for directory in self._root.iterdir():
                if directory.name not in kept:
                    shutil.rmtree(directory)
            if not kept:
                self._root.rmdir()
        except OSError as error:
            logger.warning("secrets of a run that has ended cannot be removed: %s", error)

    @staticmethod
    def _make_private(directory: Path) -> None:
        """Create a directory that only this user can open, unless it is there.

        Raises:
            OSError: it cannot be created, or it is a link, or others can open it.
        """
        directory.parent.mkdir(parents=True, exist_ok=True)
        try:
            directory.mkdir(mode=0o700)
        except FileExistsError:
            found = directory.lstat()
            is_private = found.st_uid == os.geteuid() and not found.st_mode & 0o066
            if not stat.S_ISDIR(found.st_mode) or not is_private:
                raise PermissionError(
                    f"{directory}, for the secrets of jobs, is not a directory of this user alone"
                ) from None


def _name(job: str, run: str) -> str:
    """Return the name of the directory of a run; no other run has it."""
    return f"{job}+{run}"
