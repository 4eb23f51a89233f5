"""Pythons with libraries that few tests need, outside the repository and edl's own environment."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from collections.abc import Collection
from pathlib import Path

from filelock import FileLock

INSTALL_S = 1200.0


def python_with(
    name: str, *requirements: str, beside_edl: bool = False, other: Collection[str] = ()
) -> Path:
    """Return a Python with some libraries; the first test that needs it installs them.

    It is kept in ``$XDG_CACHE_HOME/edl/tests`` (``~/.cache/edl/tests``) for the next run.

    Args:
        name: the name of its folder there; one with the releases in it, so that a new release gets
            a new folder.
        requirements: what pip installs, with releases.
        beside_edl: whether it also imports what this Python has: edl's dependencies, Horovod, the
            frameworks. pip leaves them as they are. edl itself is in the repository, for which the
            caller sets ``PYTHONPATH``.
        other: packages of these of which it may have another release, as the libraries need.

    Raises:
        AssertionError: pip cannot install them; the text has its message.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    directory = cache / "edl" / "tests" / name
    directory.parent.mkdir(parents=True, exist_ok=True)
    python = directory / "bin" / "python"
    with FileLock(f"{directory}.lock", timeout=INSTALL_S):
        if not (directory / "ready").exists():
            _run(sys.executable, "-m", "venv", "--clear", str(directory))
            held = _share(python, directory, other) if beside_edl else ()
            _run(str(python), "-m", "pip", "install", "--quiet", *held, *requirements)
            (directory / "ready").touch()
        if beside_edl:
            _link_environment(python)
    return python


def _share(python: Path, directory: Path, other: Collection[str]) -> tuple[str, ...]:
    """Let a new environment import what this one has; return what keeps pip from replacing it."""
    _link_environment(python)
    frozen = _run(sys.executable, "-m", "pip", "freeze", "--exclude-editable")
    held = directory / "constraints.txt"
    lines = [one for one in frozen.splitlines() if "==" in one]
    held.write_text("".join(f"{one}\n" for one in lines if one.partition("==")[0] not in other))
    return ("--constraint", str(held))


def _link_environment(python: Path) -> None:
    """Let a new environment find the packages of this one; one that was linked may be gone."""
    link = next(python.parent.parent.glob("lib/python*/site-packages")) / "beside-edl.pth"
    if not link.exists() or not Path(link.read_text().strip()).exists():
        link.write_text(sysconfig.get_path("purelib") + "\n")


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=INSTALL_S)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr[-2000:]}"
    return done.stdout
