"""Find the disk of a file: the place where the disk is mounted (:func:`mount_point`)."""

from __future__ import annotations

import os
from pathlib import Path


def mount_point(path: str | Path) -> str:
    """Return the directory at which the disk of `path` is mounted, such as "/data"."""
    # Events name it, so that several failures on one full disk are known to be one.
    found = Path(os.path.realpath(path))
    return str(next(one for one in (found, *found.parents) if os.path.ismount(one)))
