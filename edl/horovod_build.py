"""What the installed Horovod says of itself, read without importing it.

A wheel that `edl build-horovod` has built carries the names of its patches
(:mod:`edl.install.horovod_patches`), so that a patched Horovod can be told from another one.
"""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

MARKER = "edl_edits.json"  # beside horovod/__init__.py, in the wheel
EDL_CALLS = "edl_calls"  # attribute of HorovodBasics: it is edl that calls init(), not the script
ADDRESS = "ring-at-the-address"  # the patch that lets a ring be at any address of its host


def applied() -> frozenset[str]:
    """The names of the patches in the installed Horovod; empty without one or on a stock build."""
    return frozenset(str(name) for name in installed_marker().get("edits", ()))


def installed_marker() -> dict[str, Any]:
    """The marker of the installed Horovod; empty without one."""
    return read_installed(f"horovod/{MARKER}")


def read_installed(name: str) -> dict[str, Any]:
    """A JSON object from the installed Horovod's files; empty when it is not there."""
    try:
        path = Path(str(importlib.metadata.distribution("horovod").locate_file(name)))
        value = json.loads(path.read_text(encoding="utf-8"))
    except (importlib.metadata.PackageNotFoundError, OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
