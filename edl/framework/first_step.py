"""Tell the launcher through two files that a worker has trained its first step (:func:`tell`).

1. A file with the monotonic time, in seconds, says that the worker has trained a step. The launcher
   limits the number of starts that end without such a file, or soon after that time. It is written
   at once, even while ZooKeeper cannot be reached: a worker may be killed right after its first
   step.
2. A JSON file lists the modules that the worker has imported. The next workers of the job are
   forked from a process that has imported the same modules (:mod:`edl.launch.template`). The list
   is not written before the first step, because PyTorch imports 800 more modules when the first
   optimizer is made.
"""

from __future__ import annotations

import json
import logging
import os
import site
import sys
import sysconfig
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import edl
from edl import config

logger = logging.getLogger(__name__)


def tell(trained_file: str, imports_file: str) -> None:
    """Tell the launcher that this worker has trained a step, and which modules it has imported."""
    try:
        if trained_file:
            Path(trained_file).write_text(f"{time.monotonic():.3f}")
        if imports_file and not Path(imports_file).exists():
            write_imports(Path(imports_file), config.environment_at_start(), config.environment())
    except OSError as error:  # a full disk
        logger.warning("the next workers of this job start more slowly: %s", error)


def write_imports(path: Path, started_with: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Write the names of the imported modules to a file, completely or not at all."""
    # Libraries read variables, which a script has set, when they are imported. So the process that
    # imports them for the next workers must set them, too. None: removed.
    names = sorted(started_with.keys() | now.keys())
    changed = {name: now.get(name) for name in names if started_with.get(name) != now.get(name)}
    installed, own = divided(sys.modules)
    text = json.dumps({"modules": installed, "own": own, "environment": changed})
    partial = path.with_name(f"{path.name}.{os.getpid()}")  # other workers write theirs
    try:
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
        partial.rename(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def divided(modules: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Divide the imported modules into installed ones and the script's own, in import order."""
    roots = tuple(f"{root}{os.sep}" for root in _roots())
    installed: list[str] = []
    own: dict[str, str] = {}
    for name, module in list(modules.items()):
        values = getattr(module, "__dict__", {})  # no attribute of a lazy module is asked for
        spec = values.get("__spec__")
        origin = getattr(spec, "origin", None)
        if getattr(spec, "name", None) != name or name in ("__main__", "__mp_main__"):
            continue  # a second name of a module, or the script
        if isinstance(origin, str) and origin not in ("built-in", "frozen"):
            path = os.path.abspath(origin)
            if path.startswith(roots):
                installed.append(name)
            else:
                own[name] = path  # apart: it may have changed when the next worker starts
    return installed, own


def _roots() -> set[str]:
    """Return the absolute paths of the folders of Python, of installed packages, and of edl."""
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    roots = {sysconfig.get_path(kind) for kind in kinds}
    roots |= {*site.getsitepackages(), site.getusersitepackages()}
    return {os.path.abspath(root) for root in roots} | {str(Path(edl.__file__).parent)}
