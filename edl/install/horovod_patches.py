"""Apply edl's patches to the source of Horovod 0.28.1 before it is built.

Horovod's last release is from 2023: it does not build with today's PyTorch and TensorFlow, and its
failures can abort, freeze or mislead a process. ``patches/NN-name.patch`` are unified diffs,
applied in the order of their numbers. The text above each diff says why it is made, and after
``Lost without it:`` what edl cannot promise on a Horovod without it. A build calls :func:`wanted`,
:func:`apply` and :func:`write_marker`. All patches must fit exactly, or nothing is built.

The wheel has a file ``horovod/edl_edits.json`` with the names of the patches; see
:mod:`edl.horovod_build`. A build for CPUs leaves out what only operations on GPUs need
(``GPU_ONLY``), so that a change of it makes no other wheel for CPUs.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from edl.errors import BuildError
from edl.horovod_build import MARKER

FOLDER = Path(__file__).with_name("patches")
NO_XLA_OPS = "no-xla-ops"
GPU_ONLY = frozenset({"broken-ring-ends-nccl"})
APPLY_TIMEOUT_S = 60.0

_NAME = re.compile(r"\d\d-(?P<name>[a-z0-9-]+)\.patch")
_LOST = re.compile(r"^Lost without it: (.+?)\n\n", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Patch:
    """One patch to Horovod's source."""

    name: str  # the name of the patch, without its number
    path: Path  # the file of the patch
    # what edl cannot promise with a Horovod that lacks the patch, for people; empty if the patch
    # matters only for the build
    lost: str


@cache
def patches(folder: Path = FOLDER) -> tuple[Patch, ...]:
    """Return all patches in a folder in the order of their names, in which they are applied."""
    return tuple(_read(path) for path in sorted(folder.glob("*.patch")))


def fingerprint(folder: Path = FOLDER, *, gpu: bool) -> str:
    """Return a hash of the file names and contents of the patches that a build chooses from."""
    chosen = [patch.path for patch in patches(folder) if gpu or patch.name not in GPU_ONLY]
    found = [(path.name, path.read_bytes()) for path in chosen]
    return hashlib.sha256(repr(found).encode()).hexdigest()[:12]


def wanted(source: Path, tensorflow_include: Path | None, *, gpu: bool) -> tuple[Patch, ...]:
    """Return the patches of edl that a build of Horovod needs, in the order to apply them."""
    without_xla = tensorflow_include and _missing_xla_headers(source, tensorflow_include)
    needless = (frozenset() if gpu else GPU_ONLY) | ({NO_XLA_OPS} if not without_xla else set())
    return tuple(patch for patch in patches() if patch.name not in needless)


def missing(marker: Mapping[str, Any]) -> tuple[Patch, ...]:
    """Return the patches that an installed Horovod lacks, and without which edl promises less."""
    applied, gpu = marker.get("edits", ()), marker.get("gpu", True)
    return tuple(
        patch
        for patch in patches()
        if patch.lost and patch.name not in applied and (gpu or patch.name not in GPU_ONLY)
    )


def apply(source: Path, chosen: Iterable[Patch]) -> None:
    """Apply patches to Horovod's source, by the program `patch`; the files are changed in place."""
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


def write_marker(source: Path, chosen: Iterable[Patch], key: str, *, gpu: bool) -> None:
    """Write the file by which a wheel of Horovod says which patches it was built with."""
    names = sorted(patch.name for patch in chosen)
    marker = {"edits": names, "fingerprint": fingerprint(gpu=gpu), "gpu": gpu, "key": key}
    (source / "horovod" / MARKER).write_text(json.dumps(marker, indent=1) + "\n", encoding="utf-8")


def _read(path: Path) -> Patch:
    """Return the name of the patch in the file `path`, the path, and what is lost without it."""
    named = _NAME.fullmatch(path.name)
    if named is None:
        raise BuildError(f"{path} is not called NN-name.patch; install edl again")
    reason, _, _ = path.read_text(encoding="utf-8").partition("--- a/")
    lost = _LOST.search(reason)
    return Patch(named["name"], path, " ".join(lost[1].split()) if lost else "")


def _missing_xla_headers(source: Path, include: Path) -> tuple[str, ...]:
    """Return the headers of XLA that Horovod's source includes and the folder `include` lacks."""
    text = (source / "horovod/tensorflow/xla_mpi_ops.cc").read_text(encoding="utf-8")
    headers = re.findall(r'^#include "(tensorflow/[^"]+)"', text, re.MULTILINE)
    return tuple(header for header in headers if not (include / header).is_file())
