"""Read what edl's build of Horovod has recorded in the installed package; do not import it.

A wheel that ``edl build-horovod`` has built carries the names of its patches
(:mod:`edl.install.horovod_wheel`), so that a patched Horovod can be told from a stock one:
:func:`applied` returns them.
"""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

MARKER = "edl_edits.json"  # beside horovod/__init__.py, in the wheel
EDL_CALLS = "edl_calls"  # attribute of HorovodBasics: it is edl that calls init(), not the script
ADDRESS = "ring-at-the-address"  # the patch that lets a ring be at any address of its host
SLEEPING = "no-busy-waits"  # the patch that lets PyTorch's wait for a collective sleep


def applied() -> frozenset[str]:
    """Return the names of the patches that edl's build has applied to the installed Horovod."""
    return frozenset(str(name) for name in installed_marker().get("edits", ()))


def installed_marker() -> dict[str, Any]:
    """Return the JSON object about edl's build that the installed Horovod has in its file MARKER"""
    return read_installed(f"horovod/{MARKER}")


def read_installed(name: str) -> dict[str, Any]:
    try:
        path = Path(str(importlib.metadata.distribution("horovod").locate_file(name)))
        value = json.loads(path.read_text(encoding="utf-8"))
    except (importlib.metadata.PackageNotFoundError, OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
