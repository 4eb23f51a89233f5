"""Make the C library keep the memory that a step frees, so that the next step uses it again.

A step allocates gradients and frees them, the same sizes each time. The C library (glibc) gives
large blocks back when they are freed, and the kernel has to fill the next step's pages with zeros.
That is 6 % of the step of an MLP with 19 MB of gradients, and a quarter with 200 MB
(docs/benchmarks/README.md, "Freed memory").
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of mallopt(3), malloc.h
# The user's own settings of what glibc gives back.
_OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_")
KEPT_BLOCK = 256 << 20  # bytes: larger blocks are given back as soon as they are freed
KEPT_AT_THE_END = 512 << 20  # bytes: free memory at the end of the heap beyond it is given back


def keep_freed_memory(environment: Mapping[str, str]) -> bool:
    """Make the C library keep freed blocks of up to 256 MiB for later allocations."""
    if any(name in environment for name in _OWN) or (
        "glibc.malloc" in environment.get("GLIBC_TUNABLES", "")
    ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # the C library is not glibc
        return False
    # The first setting ends that glibc itself moves both thresholds.
    done = (mallopt(_M_MMAP_THRESHOLD, KEPT_BLOCK), mallopt(_M_TRIM_THRESHOLD, KEPT_AT_THE_END))
    return all(done)
