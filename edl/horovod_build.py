"""Read what edl's build of Horovod has recorded in the installed package; do not import it.

A wheel that ``edl build-horovod`` has built carries the names of its patches
(:mod:`edl.install.horovod_patches`), so that a patched Horovod can be told from a stock one:
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
    """Return the names of the patches that edl's build has applied to the installed Horovod.

    A name is that of the patch's file without its number, such as "no-xla-ops". The set is empty on
    a stock build and without Horovod.
    """
    return frozenset(str(name) for name in installed_marker().get("edits", ()))


def installed_marker() -> dict[str, Any]:
    """Return the JSON object about edl's build that the installed Horovod has in its file MARKER.

    ``edl build-horovod`` adds this file to Horovod's wheel. Its keys are "edits" (the names of the
    patches), "fingerprint" (of the patches it chose from), "gpu" (whether it has operations on
    GPUs) and "key" (the recipe of the build). The result is empty if no Horovod is installed, or
    one that edl has not built.
    """
    return read_installed(f"horovod/{MARKER}")


def read_installed(name: str) -> dict[str, Any]:
    """Return the JSON object in a file of the installed Horovod.

    The object is empty without Horovod or without the file, or if it holds no JSON object.

    Args:
        name: the path of the file, relative to site-packages.
    """
    try:
        path = Path(str(importlib.metadata.distribution("horovod").locate_file(name)))
        value = json.loads(path.read_text(encoding="utf-8"))
    except (importlib.metadata.PackageNotFoundError, OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
