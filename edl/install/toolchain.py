"""Find the tools that compile Horovod, and say how to install those that are missing.

:func:`tools`, :func:`system_cmake` and :func:`packaged_nccl` look for them; nothing is installed.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Tool:
    """A tool or file that the build of Horovod needs, as :func:`tools` has looked for it.

    Attributes:
        name: the name of the tool or file, such as "g++".
        found: its path; empty if it is missing.
        remedy: what to do if it is missing, for people; also set if it is found.
    """

    name: str
    found: str
    remedy: str


def tools() -> tuple[Tool, ...]:
    """Return the C++ compiler, make, patch and Python's headers, in this order, found or missing.

    Programs are searched for on PATH; their versions are not checked. CMake is not among them,
    because the build lets pip install it where it is missing.
    """
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
    """Return the path of an installed CMake that can build Horovod: version 3.13 or a later 3.x.

    Only the first CMake on PATH is asked. The result is empty if there is none, or if it has
    another version or does not answer within 30 s.
    """
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


def packaged_nccl() -> Path | None:
    """Return the folder of the NCCL that PyTorch's wheels for CUDA require; None without it.

    It is that of the Python package ``nvidia-nccl-cu12`` or ``-cu13``, with ``include/nccl.h`` and
    ``lib/libnccl.so.2``.
    """
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:  # there is not even a package nvidia
        return None
    folders = spec.submodule_search_locations if spec is not None else None
    for folder in map(Path, folders or ()):
        if (folder / "include/nccl.h").is_file() and (folder / "lib/libnccl.so.2").is_file():
            return folder
    return None
