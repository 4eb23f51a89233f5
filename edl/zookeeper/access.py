"""Define who may read and write the nodes of a job or cluster: a session that knows its secret.

This is ZooKeeper's digest scheme: a session proves identities, ``user:password``, and an ACL on
each node names those that may read or change it. An identity (:class:`Access`) belongs to one job
or cluster, so the secret of one job does not open another. No ACL covers ``exists``: who guesses
the name of a node learns that it exists, how long its value is and when it was changed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from kazoo.security import ACL, OPEN_ACL_UNSAFE, Permissions, make_acl, make_digest_acl

from edl.secret_file import derived

OPEN = OPEN_ACL_UNSAFE
SHARED = [
    # No WRITE and no ADMIN: nobody can shut all others out by changing this ACL.
    make_acl("world", "anyone", read=True, create=True, delete=True)
]
"""Of the node above all jobs: anybody may list the jobs and add one. A job in it can only be
removed when it is empty, which only those who know its secret can bring about."""


@dataclass(frozen=True)
class Access:
    """The ZooKeeper identity that follows from the name and the secret of a job or cluster."""

    job: str  # its name, which is also the user name of the identity
    secret: str = field(repr=False)  # its password is derived from this

    @cached_property
    def credential(self) -> str:
        return f"{self.job}:{self._password}"

    @cached_property
    def acl(self) -> list[ACL]:
        return [make_digest_acl(self.job, self._password, all=True)]

    def opens(self, acl: list[ACL]) -> bool:
        """Return whether this secret made a node: its ACL gives this identity all rights."""
        mine = self.acl[0].id
        return any(one.id == mine and one.perms == Permissions.ALL for one in acl)

    @property
    def _password(self) -> str:
        return derived(self.secret, "zookeeper", self.job)


# ------------------------------------------------------------
# Keep the secrets of jobs and clusters on this machine, in files that only this user can read.
#
# `edl run` announces the secret of a job before the job is created with it, and keeps it once the
# job exists. Two files under the state directory hold the secrets of `jobs/<job>`, and in the same
# way those of `clusters/<cluster>`:
#
# - `secret`: that of the newest job of that name that was started or joined here;
# - `secrets`: the newest 64 of that name, the newest last. A job of the same name may live in
#   another ZooKeeper, and only a process that has the secret of an ended job can replace it.
#
# A worker gets the secret as EDL_SECRET in its environment; it is never on a command line.

JOBS, CLUSTERS = "jobs", "clusters"  # folders in the state directory
RANDOM_BYTES = 32
TRIED = 8  # earlier secrets of a name that are tried
KEPT = 64  # secrets of a name that are kept


def new_secret() -> str:
    return secrets.token_hex(RANDOM_BYTES)


def announce(state: Path, job: str, secret: str, of: str = JOBS) -> None:
    """Add `secret` to the stored secrets of `job`, before the job is created with it."""
    # Before: if the process died in between, nobody could open the job again.
    directory = _directory(state, job, of)
    earlier = [one for one in _lines(directory / "secrets") if one != secret][1 - KEPT :]
    replace_file(directory / "secrets", [*earlier, secret])


def keep(state: Path, job: str, secret: str, of: str = JOBS) -> Path:
    """Make `secret` the current secret of jobs named `job` on this host."""
    announce(state, job, secret, of)
    path = _directory(state, job, of) / "secret"
    replace_file(path, [secret])
    return path


def candidates(state: Path, job: str, configured: str | None, of: str = JOBS) -> list[str]:
    """Return the stored secrets that may open `job`, the likeliest first and each once."""
    directory = state / of / job
    kept = _lines(directory / "secret") + _lines(directory / "secrets")[::-1][:TRIED]
    return list(dict.fromkeys([*([configured] if configured else []), *kept]))


def stored(state: Path, names: Iterable[str], of: str = JOBS) -> set[str]:
    """Return those of `names`, of jobs, for which `state` has a secret."""
    return {name for name in names if (state / of / name / "secrets").exists()}


def known_names(state: Path, of: str = JOBS) -> list[str]:
    return sorted(path.parent.name for path in (state / of).glob("*/secrets"))


def _directory(state: Path, job: str, of: str) -> Path:
    path = state / of / job
    path.mkdir(parents=True, exist_ok=True)
    return path


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def replace_file(path: Path, lines: Sequence[str]) -> None:
    # A reader sees the old or the new file whole; mkstemp creates it with mode 0600.
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.writelines(f"{line}\n" for line in lines)
        os.replace(name, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
