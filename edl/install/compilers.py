"""Choose how many compilers run at once when Horovod is built: :func:`with_make_flags`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

GB_PER_COMPILER = 2.0  # what one compilation against PyTorch's headers takes at its peak
# The limit of a container's memory, in bytes, as the container sees it: cgroup 2, then 1.
LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
OF_MAKE = ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")  # what make exports to its recipes


def with_make_flags(environ: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables for a build, in which MAKEFLAGS says how many compilers run."""
    # What make exports to its recipes says nothing about this build, and names a closed pipe.
    by_user = environ.get("MAKEFLAGS", "").strip() if "MAKELEVEL" not in environ else ""
    rest = {name: value for name, value in environ.items() if name not in OF_MAKE}
    return rest | {"MAKEFLAGS": by_user or f"-j{compilers()}"}


def compilers() -> int:
    """Return how many compilers may run at once: one for each core, if the memory is enough."""
    cores = len(os.sched_getaffinity(0))
    return max(1, min(cores, int(_memory_bytes() / (GB_PER_COMPILER * 1e9))))


def _memory_bytes() -> float:
    """Return the size of the machine's memory, or the limit of this container if that is less."""
    sizes = [float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))]
    for path in LIMITS:
        try:
            sizes.append(float(path.read_text()))
        except (OSError, ValueError):  # there is no such file, or no limit: "max"
            continue
    return min(sizes)
