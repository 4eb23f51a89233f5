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

    It stays in ``~/.cache/edl/tests/NAME``; ``name`` has the releases in it, for new ones get a
    new folder. ``beside_edl``: it also imports what this Python has, which pip leaves as it is but
    for ``other``; edl itself is in the repository, for which the caller sets ``PYTHONPATH``.
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


def lightning_python() -> Path:
    libraries = ("lightning==2.6.6", "torchmetrics==1.9.0")
    return python_with("lightning-2.6.6", *libraries, beside_edl=True)


def huggingface_python() -> Path:
    libraries = ("transformers==5.24.0", "accelerate==1.15.0", "datasets==5.2.0")
    return python_with("huggingface-5.24.0", *libraries, beside_edl=True)


def webdataset_python() -> Path:
    return python_with("webdataset-1.0.2", "webdataset==1.0.2", beside_edl=True)
