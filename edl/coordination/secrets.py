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
    """Add ``secret`` to the stored secrets of ``job``, before the job is created with it.

    The current secret of the name stays (see :func:`keep`). If the secret were stored later and the
    process died in between, nobody could open the job again. The newest 64 secrets of a name are
    kept.

    Args:
        state: The state directory of edl.
        job: The name of the job.
        secret: The secret that the job is about to be created with.
        of: ``CLUSTERS`` for a cluster; ``job`` is its name then.
    """
    directory = _directory(state, job, of)
    earlier = [one for one in _lines(directory / "secrets") if one != secret][1 - KEPT :]
    replace_file(directory / "secrets", [*earlier, secret])


def keep(state: Path, job: str, secret: str, of: str = JOBS) -> Path:
    """Make ``secret`` the current secret of jobs named ``job`` on this host.

    Args:
        state: The state directory of edl.
        job: The name of the job.
        secret: The secret of the job that was started or joined.
        of: ``CLUSTERS`` for a cluster; ``job`` is its name then.

    Returns:
        The path of the file that holds the current secret.
    """
    announce(state, job, secret, of)
    path = _directory(state, job, of) / "secret"
    replace_file(path, [secret])
    return path


def candidates(state: Path, job: str, configured: str | None, of: str = JOBS) -> list[str]:
    """Return the stored secrets that may open ``job``, the likeliest first and each once.

    The order is: ``configured``, the current one of that name on this host (see :func:`keep`), and
    the 8 newest stored ones of that name, from new to old. The list is empty if there are none.

    Args:
        state: The state directory of edl.
        job: The name of the job.
        configured: The secret in the configuration of this process; None or empty: there is none.
        of: ``CLUSTERS`` for a cluster; ``job`` is its name then.
    """
    directory = state / of / job
    kept = _lines(directory / "secret") + _lines(directory / "secrets")[::-1][:TRIED]
    return list(dict.fromkeys([*([configured] if configured else []), *kept]))


def stored(state: Path, names: Iterable[str], of: str = JOBS) -> set[str]:
    """Return those of ``names``, of jobs, for which ``state`` has a secret.

    ``state`` is the state directory of edl. Another user's job may have such a name, too. With
    ``of=CLUSTERS`` they are names of clusters.
    """
    return {name for name in names if (state / of / name / "secrets").exists()}


def known_names(state: Path, of: str = JOBS) -> list[str]:
    """Return the names of all jobs for which ``state`` has a secret, in alphabetical order.

    ``state`` is the state directory of edl. With ``of=CLUSTERS`` they are names of clusters.

    Raises:
        OSError: the directory cannot be read.
    """
    return sorted(path.parent.name for path in (state / of).glob("*/secrets"))


def _directory(state: Path, job: str, of: str) -> Path:
    """Return the directory with the secrets of ``job``; create it if missing.

    ``state`` is the state directory of edl, and ``of`` the folder in it.
    """
    path = state / of / job
    path.mkdir(parents=True, exist_ok=True)
    return path


def _lines(path: Path) -> list[str]:
    """Return the lines of the file at ``path``, a secret each; no lines if it cannot be read."""
    try:
        return path.read_text().split()
    except OSError:
        return []


def replace_file(path: Path, lines: Sequence[str]) -> None:
    """Replace the file at ``path`` by one with ``lines``, readable for this user only.

    A reader sees the old or the new file, never a part of one (mkstemp creates it with mode 0600).
    """
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.writelines(f"{line}\n" for line in lines)
        os.replace(name, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
