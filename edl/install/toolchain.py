"""What a machine needs to compile Horovod, and what to install where something lacks."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Tool:
    """One thing that the build needs. ``found`` is where, or empty; ``remedy`` what to do."""

    name: str
    found: str
    remedy: str


def tools() -> tuple[Tool, ...]:
    """Compiler, make, patch, Python's headers. CMake is not here: pip brings one where it lacks."""
    header = Path(sysconfig.get_path("include")) / "Python.h"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return (
        Tool(
            "g++",
            shutil.which("g++") or shutil.which("c++") or "",
            "install a C++20 compiler (Debian: apt-get install g++)",
        ),
        Tool("make", shutil.which("make") or "", "install make (Debian: apt-get install make)"),
        Tool("patch", shutil.which("patch") or "", "install patch (Debian: apt-get install patch)"),
        Tool(
            "Python.h",
            str(header) if header.is_file() else "",
            f"install the headers of Python {version} (Debian: apt-get install python3-dev)",
        ),
    )


def system_cmake() -> str:
    """The path of an installed CMake that can build Horovod (3.13 up to 3.x), or empty."""
    path = shutil.which("cmake")
    if path is None:
        return ""
    try:
        output = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=30, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    found = re.search(r"version (\d+)\.(\d+)", output)
    if found is None:
        return ""
    return path if (3, 13) <= (int(found[1]), int(found[2])) < (4, 0) else ""
