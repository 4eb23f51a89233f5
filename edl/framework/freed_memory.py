"""Keep memory that was freed for the next step, in place of giving it back to the kernel.

A step allocates gradients and frees them, the same sizes each time. The C library (glibc) gives
large blocks back when they are freed, and the kernel has to fill the next step's pages with zeros:
an eighth of the step of an MLP with 19 MB of gradients, and a quarter with 200 MB
(docs/benchmarks/README.md).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of mallopt(3), malloc.h
KEPT_BLOCK = 256 << 20  # bytes: larger blocks are given back as soon as they are freed
KEPT_AT_THE_END = 512 << 20  # bytes: free memory at the end of the heap beyond it is given back


def keep_freed_memory(environment: Mapping[str, str]) -> bool:
    """Let the C library keep blocks that are freed, of up to 256 MiB each; return whether it does.

    It stays as it is where the user has set how it allocates (environment variables ``MALLOC_...``,
    ``GLIBC_TUNABLES``), and in C libraries other than glibc.

    Args:
        environment: the environment variables of this process.
    """
    if any(name.startswith("MALLOC_") for name in environment) or (
        "glibc.malloc" in environment.get("GLIBC_TUNABLES", "")
    ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # The first setting ends that glibc itself moves both thresholds.
    done = (mallopt(_M_MMAP_THRESHOLD, KEPT_BLOCK), mallopt(_M_TRIM_THRESHOLD, KEPT_AT_THE_END))
    return all(done)
