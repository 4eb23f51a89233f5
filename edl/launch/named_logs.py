"""Find the logs of a job's workers in a directory, by the names of the workers."""

from __future__ import annotations

import os
from pathlib import Path


def named_logs(directory: Path) -> dict[str, Path]:
    """Return the paths of the worker logs in `directory`, by the name of the worker, like "w3"."""
    # By the id of its start attempt, if it never registered or another worker has the name now.
    links = {
        os.path.realpath(path): path.stem for path in directory.glob("*.log") if path.is_symlink()
    }
    found = [path for path in directory.glob("*.log") if not path.is_symlink()]
    named = {links.get(os.path.realpath(path), path.stem): path for path in found}
    return {name: named[name] for name in sorted(named, key=lambda name: (len(name), name))}
