"""Keep the secrets of jobs and clusters on this machine, in files that only this user can read.

`edl run` calls three functions: :func:`new_secret` makes the secret of a job; :func:`announce`
stores it among the secrets of the job's name, before the job is created with it; :func:`keep` makes
it the current secret of that name, once the job exists. Other commands of the same user find it
here (:func:`candidates`). Two files under the state directory of edl hold the secrets:

- ``jobs/<job>/secret``: the secret of the newest job of that name that was started or joined here;
- ``jobs/<job>/secrets``: the newest 64 secrets of that name, that one included, the newest last. A
  job of the same name may live in another ZooKeeper, and only a process that has the secret of an
  ended job can replace it.

Those of clusters are kept in the same way, in ``clusters/<cluster>``. The functions take
``of=CLUSTERS`` for them.

A worker gets the secret as EDL_SECRET in its environment; it is never on a command line.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

JOBS, CLUSTERS = "jobs", "clusters"  # folders in the state directory
RANDOM_BYTES = 32
TRIED = 8  # earlier secrets of a name that are tried
KEPT = 64  # secrets of a name that are kept


def new_secret() -> str:
    """Return a new secret: 32 random bytes as 64 hexadecimal digits."""
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
    """Return the names of all jobs for which `state` has a secret, in alphabetical order."""
    return sorted(path.parent.name for path in (state / of).glob("*/secrets"))


def _directory(state: Path, job: str, of: str) -> Path:
    """Return the directory with the secrets of `job`; create it if missing."""
    path = state / of / job
    path.mkdir(parents=True, exist_ok=True)
    return path


def _lines(path: Path) -> list[str]:
    """Return the lines of the file at `path`, a secret each; no lines if it cannot be read."""
    try:
        return path.read_text().split()
    except OSError:
        return []


def replace_file(path: Path, lines: Sequence[str]) -> None:
    """Replace the file at `path` by one with `lines`, readable for this user only."""
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
