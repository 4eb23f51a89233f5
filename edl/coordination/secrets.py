"""The secret of a job: made by `edl run`, kept for the other commands of this user, found again.

Under the state directory of edl, readable for this user only:

- ``jobs/<job>/secret``: of the newest job of that name that was started, or joined, here;
- ``jobs/<job>/secrets``: of the earlier ones too, the newest last. A job of the same name in
  another ZooKeeper may live, and one that has ended can only be replaced by who can open it.

A worker gets it as EDL_SECRET in its environment; it is never on a command line.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path

from edl.config import LEAST_SECRET
from edl.errors import ConfigError

RANDOM_BYTES = 32
TRIED = 8  # of the earlier secrets of a name
KEPT = 64


def new_secret() -> str:
    """32 random bytes, in hexadecimal."""
    return secrets.token_hex(RANDOM_BYTES)


def announce(state: Path, job: str, secret: str) -> None:
    """Write down the secret that a job is about to be created with.

    Before it exists: of a process that dies in between the job could never be opened again.
    """
    directory = _directory(state, job)
    earlier = [one for one in _lines(directory / "secrets") if one != secret][1 - KEPT :]
    _replace(directory / "secrets", [*earlier, secret])


def keep(state: Path, job: str, secret: str) -> Path:
    """Make ``secret`` that of the job of that name on this host; where it is."""
    announce(state, job, secret)
    path = _directory(state, job) / "secret"
    _replace(path, [secret])
    return path


def candidates(state: Path, job: str, configured: str | None) -> list[str]:
    """The secrets that may open ``job``, the likeliest first: configured, newest, earlier."""
    directory = state / "jobs" / job
    kept = _lines(directory / "secret") + _lines(directory / "secrets")[::-1][:TRIED]
    return list(dict.fromkeys([*([configured] if configured else []), *kept]))


def read_file(path: Path) -> str:
    """The secret in a file that the user names.

    Raises:
        ConfigError: it cannot be read, others can read it too, or there is no secret in it.
    """
    try:
        with path.open() as file:
            mode = os.fstat(file.fileno()).st_mode
            words = file.read().split()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("secret_file", f"cannot read the secret file {path}: {error}") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(
            "secret_file", f"the secret file {path} is open to other users; `chmod 600 {path}`"
        )
    if len(words) != 1 or len(words[0]) < LEAST_SECRET:
        raise ConfigError(
            "secret_file",
            f"the file {path} does not hold a secret: one word of at least {LEAST_SECRET} "
            "characters is expected",
        )
    return words[0]


def _directory(state: Path, job: str) -> Path:
    path = state / "jobs" / job
    path.mkdir(parents=True, exist_ok=True)
    return path


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def _replace(path: Path, lines: Sequence[str]) -> None:
    """Write a file that is whole at any instant, and never open to others (mkstemp: 0600)."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.writelines(f"{line}\n" for line in lines)
        os.replace(name, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
