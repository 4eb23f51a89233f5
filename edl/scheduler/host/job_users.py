"""Run the agents of a host's jobs as other users of the machine: each tenant's as its own.

`edl host` that is root can do so (``--user TENANT=USER``). Then the code of a tenant's job can read
neither the secret of the cluster nor the files of other tenants' jobs. Without ``--user`` no job of
a tenant runs; who trusts them names the user of `edl host` itself.
"""

from __future__ import annotations

import errno
import os
import pwd
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edl.core.cluster.tenant_names import is_tenant_name, tenant_of
from edl.errors import UsageError

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
    """A user of this machine, as whom agents and workers run."""

    name: str
    uid: int
    gid: int  # of its first group
    groups: tuple[int, ...]  # of all its groups
    directory: Path  # its home directory

    @property
    def jobs(self) -> Path:
        """The directory in which its agents keep jobs, and the logs of workers."""
        return self.directory / ".local" / "state" / "edl" / "jobs"

    def environment(self, of_host: Mapping[str, str]) -> dict[str, str]:
        """Return what the user's processes get of the environment `of_host`, and its own."""
        passed = {key: value for key, value in of_host.items() if key in PASSED}
        return {**passed, "HOME": str(self.directory), "USER": self.name, "LOGNAME": self.name}


@dataclass(frozen=True)
class JobUsers:
    """The users as whom the jobs of a host run."""

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
    """Return the users that `words` name, each like "ann=alice", or "edl" for all other jobs."""
    found: dict[str, JobUser] = {}
    for word in words:
        tenant, sign, name = word.rpartition("=")
        if sign and not is_tenant_name(tenant):
            raise UsageError(f"--user is {word!r}; give TENANT=USER, or USER for all other jobs")
        if tenant in found:
            raise UsageError(f"--user {word} names its jobs a second time")
        user = _user(name)
        if user.uid == 0 and (tenant or os.geteuid() != 0):
            raise UsageError("--user names root, who can read everything; give another user")
        if any(one.uid == user.uid for one in found.values()):
            raise UsageError(f"--user {word}: user {name} has other jobs; give each its own user")
        found[tenant] = user
    if os.geteuid() != 0 and any(one.uid != os.geteuid() for one in found.values()):
        raise UsageError("--user needs `edl host` to run as root, but for the user who runs it")
    return JobUsers(found)


def _user(name: str) -> JobUser:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise UsageError(f"this machine has no user {name!r}") from None
    groups = {entry.pw_gid, *os.getgrouplist(name, entry.pw_gid)}  # of directory services, too
    return JobUser(name, entry.pw_uid, entry.pw_gid, tuple(sorted(groups)), Path(entry.pw_dir))
