"""Name the instruction sets by which libraries compute on this host, for jobs that must be exact.

PyTorch, oneDNN and MKL choose among instruction sets when they are loaded, by the processor that
they find. With another set they add up numbers in another order, so the last bits of a result
differ. Variables of the environment limit the choice; where they are set, it is the same on all
hosts. Of the processor the maker counts, too: MKL looks at it.
"""

from __future__ import annotations

import functools
import platform
from collections.abc import Mapping
from pathlib import Path

# The sets by which results in float32 and float64 differ, the newest first, by their flag.
_SETS = (("avx512f", "AVX512"), ("avx2", "AVX2"), ("avx", "AVX"), ("sse4_1", "SSE41"))
_ONEDNN = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
_CPU_INFO = Path("/proc/cpuinfo")


@functools.cache
def processor() -> str:
    """Return the maker and the newest instruction set of this host's processor."""
    try:
        return described(_CPU_INFO.read_text())
    except OSError:
        return platform.machine()


def described(cpu_info: str) -> str:
    """Return what `processor` returns, from the text of Linux's `/proc/cpuinfo`."""
    known = dict[str, str]()
    for line in cpu_info.splitlines():
        name, _, value = line.partition(":")
        known.setdefault(name.strip(), value.strip())
    flags = known.get("flags", "").split()
    newest = next((name for flag, name in _SETS if flag in flags), platform.machine())
    return f"{known.get('vendor_id', '')} {newest}".strip()


def of_onednn(environ: Mapping[str, str]) -> str:
    """Return the instruction set to which oneDNN is limited, else what the processor has."""
    limits = [environ[name].upper() for name in _ONEDNN if environ.get(name)]
    return f"oneDNN {limits[0] if limits else processor()}"


def of_mkl(environ: Mapping[str, str]) -> str:
    """Return the branch of MKL's code that the user has chosen, else what the processor has."""
    return f"MKL {environ.get('MKL_CBWR', '').upper() or processor()}"
