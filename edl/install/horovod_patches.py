"""The patches that edl makes to Horovod 0.28.1's source before it is built.

Horovod's last release is from 2023: it does not build with today's PyTorch and TensorFlow, and
what fails in it can abort, freeze or mislead a process. ``patches/NN-name.patch`` are unified
diffs, applied in the order of their numbers. Above its diff each says why it is made, and after
``Lost without it:`` what edl cannot promise on a Horovod without it. All must fit exactly, or
nothing is built (:func:`apply`).

The wheel carries ``horovod/edl_edits.json`` with the names of the patches; see
:mod:`edl.horovod_build`.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from edl.errors import BuildError
from edl.horovod_build import MARKER

FOLDER = Path(__file__).with_name("patches")
NO_XLA_OPS = "no-xla-ops"
APPLY_TIMEOUT_S = 60.0

_NAME = re.compile(r"\d\d-(?P<name>[a-z0-9-]+)\.patch")
_LOST = re.compile(r"^Lost without it: (.+?)\n\n", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Patch:
    """One patch. ``lost``: what edl cannot promise without it; empty: nothing, once it is built."""

    name: str
    path: Path
    lost: str


@cache
def patches(folder: Path = FOLDER) -> tuple[Patch, ...]:
    """All of them, in the order in which they are applied."""
    return tuple(_read(path) for path in sorted(folder.glob("*.patch")))


def fingerprint(folder: Path = FOLDER) -> str:
    """A hash of names and bytes: two builds with the same one got the same patches."""
    found = [(patch.path.name, patch.path.read_bytes()) for patch in patches(folder)]
    return hashlib.sha256(repr(found).encode()).hexdigest()[:12]


def wanted(source: Path, tensorflow_include: Path | None) -> tuple[Patch, ...]:
    """The patches that this build needs: all, but NO_XLA_OPS only where a header lacks.

    ``tensorflow_include`` is the folder of TensorFlow's headers, None for a build without it.
    """
    missing = () if tensorflow_include is None else _missing_xla_headers(source, tensorflow_include)
    return tuple(patch for patch in patches() if patch.name != NO_XLA_OPS or missing)


def apply(source: Path, chosen: Iterable[Patch]) -> None:
    """Apply the patches to ``source``, the unpacked source distribution.

    Raises:
        BuildError: one does not fit exactly; it names the patch. Those before it stay applied,
            so build only after success.
    """
    for patch in chosen:
        command = ["patch", "--strip=1", "--fuzz=0", "--forward", "--batch"]
        try:
            done = subprocess.run(
                [*command, f"--directory={source}", f"--input={patch.path}"],
                capture_output=True,
                text=True,
                timeout=APPLY_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BuildError(
                f"the program `patch` did not apply {patch.path.name} to Horovod: {error}"
            ) from error
        if done.returncode != 0:
            said = " / ".join((done.stdout + done.stderr).strip().splitlines())
            raise BuildError(
                f"{patch.path.name} does not fit Horovod ({said}); this is not the source of "
                "Horovod 0.28.1 that edl knows. Remove it from the cache and try again"
            )


def write_marker(source: Path, chosen: Iterable[Patch], key: str) -> None:
    """Put the marker into ``source``, so that the wheel says what it was built with."""
    names = sorted(patch.name for patch in chosen)
    marker = {"edits": names, "fingerprint": fingerprint(), "key": key}
    (source / "horovod" / MARKER).write_text(json.dumps(marker, indent=1) + "\n", encoding="utf-8")


def _read(path: Path) -> Patch:
    named = _NAME.fullmatch(path.name)
    if named is None:
        raise BuildError(f"{path} is not called NN-name.patch; install edl again")
    reason, _, _ = path.read_text(encoding="utf-8").partition("--- a/")
    lost = _LOST.search(reason)
    return Patch(named["name"], path, " ".join(lost[1].split()) if lost else "")


def _missing_xla_headers(source: Path, include: Path) -> tuple[str, ...]:
    """Headers of TensorFlow that xla_mpi_ops.cc includes and ``include`` does not have."""
    text = (source / "horovod/tensorflow/xla_mpi_ops.cc").read_text(encoding="utf-8")
    headers = re.findall(r'^#include "(tensorflow/[^"]+)"', text, re.MULTILINE)
    return tuple(header for header in headers if not (include / header).is_file())
