"""Run the agents of a host's jobs as other users of the machine: each tenant's as its own.

`edl host` that is root can do so (``--user TENANT=USER``). Then the code of a tenant's job can read
neither the secret of the cluster nor the files of other tenants' jobs. Without ``--user`` no job of
a tenant runs; who trusts them names the user of `edl host` itself.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import pwd
import shutil
import stat
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edl.cluster.records import is_tenant_name, tenant_of
from edl.errors import UsageError

logger = logging.getLogger(__name__)


ALL_OTHERS = ""  # the key of the user for the jobs of no tenant that is named
# What such a user gets of the environment of `edl host`: it may hold secrets of root's.
PASSED = frozenset(
    (
        *("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "PYTHONPATH", "OMP_NUM_THREADS"),
        *("CUDA_VISIBLE_DEVICES", "CUDA_HOME", "NVIDIA_VISIBLE_DEVICES"),
    )
)


@dataclass(frozen=True)
class JobUser:
    name: str
    uid: int
    gid: int  # of its first group
    groups: tuple[int, ...]  # of all its groups
    directory: Path  # its home directory

    @property
    def jobs(self) -> Path:
        return self.directory / ".local" / "state" / "edl" / "jobs"

    def environment(self, of_host: Mapping[str, str]) -> dict[str, str]:
        passed = {key: value for key, value in of_host.items() if key in PASSED}
        return {**passed, "HOME": str(self.directory), "USER": self.name, "LOGNAME": self.name}


@dataclass(frozen=True)
class JobUsers:
    # tenant -> its user; `ALL_OTHERS` -> the user of all other jobs. Empty: the administrator's
    # jobs run as the user of this process, those of tenants not at all.
    of_tenants: Mapping[str, JobUser] = field(default_factory=dict)

    def find(self, job: str) -> JobUser | None:
        """Return the user of `job`; None: there is none for it, or it is that of this process."""
        found = self._named(job)
        return None if found is None or found.uid == os.geteuid() else found

    def require(self, job: str) -> JobUser | None:
        """Return the user of `job`; None: it runs as the user of this process."""
        if self.of_tenants and self._named(job) is None:
            why = f"`edl host` has been given no user for job {job}; add --user TENANT=USER"
            raise PermissionError(errno.EPERM, why)
        return self.find(job)

    def _named(self, job: str) -> JobUser | None:
        return self.of_tenants.get(tenant_of(job, self.of_tenants) or ALL_OTHERS)


NO_USERS = JobUsers()  # all jobs run as the user of this process


def job_users(words: Sequence[str]) -> JobUsers:
    found: dict[str, JobUser] = {}
    for word in words:
        tenant, sign, name = word.rpartition("=")
        if sign and not is_tenant_name(tenant):
            raise UsageError(f"--user is {word!r}; give TENANT=USER, or USER for all other jobs")
        if tenant in found:
            raise UsageError(f"--user {word} names its jobs a second time")
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            raise UsageError(f"this machine has no user {name!r}") from None
        # Those of directory services, too.
        groups = tuple(sorted({entry.pw_gid, *os.getgrouplist(name, entry.pw_gid)}))
        user = JobUser(name, entry.pw_uid, entry.pw_gid, groups, Path(entry.pw_dir))
        if user.uid == 0 and (tenant or os.geteuid() != 0):
            raise UsageError("--user names root, who can read everything; give another user")
        if any(one.uid == user.uid for one in found.values()):
            raise UsageError(f"--user {word}: user {name} has other jobs; give each its own user")
        found[tenant] = user
    if os.geteuid() != 0 and any(one.uid != os.geteuid() for one in found.values()):
        raise UsageError("--user needs `edl host` to run as root, but for the user who runs it")
    return JobUsers(found)


# ------------------------------------------------------------
# Give the secrets for which jobs ask to their commands, as files that only this user can read.
#
# Each run of a job has a directory of its own, in memory where the system has such a file system
# (`/dev/shm`). The directories are found again by their names, so nothing about them is kept in
# memory: the next `edl host` removes those that a former one has left.
#
# Every user can write to `/dev/shm`, and put a link or a directory there. So the directory that has
# those of the runs ends with a random text, which nobody knows before, and is found by what it
# begins with. Only what belongs to this user alone counts. It is opened once, and what is removed
# is removed within the opened directory, whatever has taken its place meanwhile.


SECRETS_VARIABLE = "EDL_SECRETS_DIR"
_MEMORY = Path("/dev/shm")
_DIGITS = 16


def secret_root(mark: str, state: Path, memory: Path = _MEMORY) -> Path:
    name = f"edl-secrets-{hashlib.sha256(mark.encode()).hexdigest()[:_DIGITS]}"
    usable = memory.is_dir() and os.access(memory, os.W_OK | os.X_OK)
    return (memory if usable else state) / name


class SecretFiles:
    def __init__(self, root: Path) -> None:
        self._root = root

    def write(
        self,
        job: str,
        run: str,
        contents: Mapping[str, bytes],
        owner: tuple[int, int] | None = None,
    ) -> Path:
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
