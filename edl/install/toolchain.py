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
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edl.install import progress

CUDA = "/usr/local/cuda"
# The compiler, its headers and the library may each be there, or be missing, by themselves.
CUDA_PROGRAM = "#include <cuda_runtime.h>\nint main() { return cudaFree(0); }\n"
COMPILE_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Tool:
    """A tool or file that the build of Horovod needs, as `tools` has looked for it."""

    name: str  # the name of the tool or file, such as "g++"
    found: str  # its path; empty if it is missing
    remedy: str  # what to do if it is missing, for people; also set if it is found


def tools() -> tuple[Tool, ...]:
    """Return the C++ compiler, make, patch and Python's headers, found or missing."""
    header = Path(sysconfig.get_path("include")) / "Python.h"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    # not CMake: the build lets pip install it where it is missing
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
    """Return the path of an installed CMake that can build Horovod: version 3.13 or a later 3.x."""
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


def cuda_path(environ: Mapping[str, str]) -> str:
    """Return PATH with the folder that HOROVOD_CUDA_HOME or CUDA_HOME names first, if one does."""
    home, path = (
        environ.get("HOROVOD_CUDA_HOME") or environ.get("CUDA_HOME"),
        environ.get("PATH", ""),
    )
    return f"{home}/bin:{path}" if home else path


def cuda_failure(environ: Mapping[str, str]) -> str:
    """Return why no program for CUDA can be compiled here, and what to do; empty if one can."""
    nvcc = shutil.which("nvcc", path=f"{cuda_path(environ)}:{CUDA}/bin")
    why = f"there is no nvcc on PATH, in CUDA_HOME or in {CUDA}"
    if nvcc is not None:
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder, "program")
            command = [nvcc, "-x", "cu", "-", "-o", str(program)]
            try:
                done = subprocess.run(
                    command,
                    input=CUDA_PROGRAM,
                    capture_output=True,
                    text=True,
                    timeout=COMPILE_TIMEOUT_S,
                    check=False,
                )
                said = progress.error_line(tuple((done.stdout + done.stderr).splitlines()))
            except (OSError, subprocess.SubprocessError) as error:
                said = str(error)
            if program.is_file():
                return ""
        why = f"{nvcc} compiles no program ({said})"
    return (
        f"{why}; install the whole CUDA toolkit, of the version that PyTorch was built for, or set "
        "CUDA_HOME to its folder; without --gpu Horovod is built for CPUs"
    )


def packaged_nccl() -> Path | None:
    """Return the folder of the NCCL that PyTorch's wheels for CUDA require; None without it."""
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:  # there is not even a package nvidia
        return None
    folders = spec.submodule_search_locations if spec is not None else None
    for folder in map(Path, folders or ()):
        if (folder / "include/nccl.h").is_file() and (folder / "lib/libnccl.so.2").is_file():
            return folder
    return None
