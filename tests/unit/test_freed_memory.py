"""Memory that a worker frees serves its next step, unless the user has set how it allocates."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edl.binding.process import keep_freed_memory

# Frees and allocates a block of 40 MB three times, and prints the page faults of the last two.
SCRIPT = """
import ctypes, resource
from edl.binding.process import keep_freed_memory
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
def once():
    block = libc.malloc(40 << 20)
    ctypes.memset(block, 1, 40 << 20)
    libc.free(block)
if {keep}:
    assert keep_freed_memory({{"MALLOC_ARENA_MAX": "2"}})
once()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(2):
    once()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(*, keep: bool) -> int:
    script = SCRIPT.format(keep=keep)
    command = [sys.executable, "-c", script]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_a_freed_block_is_used_again_without_a_page_fault() -> None:
    assert faults(keep=True) < faults(keep=False) / 10


@pytest.mark.parametrize(
    "own",
    [{"MALLOC_TRIM_THRESHOLD_": "131072"}, {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=1"}],
)
def test_what_the_user_has_set_stays(own: dict[str, str]) -> None:
    assert not keep_freed_memory(own)
