"""The instruction sets by which a host computes, as jobs that must be exact compare them."""

from __future__ import annotations

import pytest

from edl.binding.api import described, of_mkl, of_onednn, processor
from edl.job.script import Arithmetic

CPU_INFO = """processor\t: 0
vendor_id\t: {maker}
flags\t\t: fpu sse2 sse4_1 {flags}

processor\t: 1
vendor_id\t: Other
"""


@pytest.mark.parametrize(
    ("maker", "flags", "name"),
    [
        ("GenuineIntel", "avx avx2 avx512f", "GenuineIntel AVX512"),
        ("AuthenticAMD", "avx avx2", "AuthenticAMD AVX2"),
        ("AuthenticAMD", "avx", "AuthenticAMD AVX"),
        ("GenuineIntel", "", "GenuineIntel SSE41"),
    ],
)
def test_a_processor_is_named_by_maker_and_newest_set(maker: str, flags: str, name: str) -> None:
    assert described(CPU_INFO.format(maker=maker, flags=flags)) == name


def test_a_limit_holds_whatever_the_processor_is() -> None:
    assert of_onednn({"ONEDNN_MAX_CPU_ISA": "avx2"}) == "oneDNN AVX2"
    assert of_onednn({"DNNL_MAX_CPU_ISA": "AVX2"}) == "oneDNN AVX2"
    assert of_onednn({}) == f"oneDNN {processor()}"
    assert of_mkl({"MKL_CBWR": "AVX2"}) == "MKL AVX2"
    assert of_mkl({"MKL_CBWR": ""}) == f"MKL {processor()}"


def test_only_what_both_know_is_compared() -> None:
    known = Arithmetic(4, "ATen AVX2")
    assert known.why_unlike(known) == known.why_unlike(Arithmetic()) == ""
    assert Arithmetic().why_unlike(known) == ""
    assert known.why_unlike(Arithmetic(8)).startswith("it computes with 4 threads")
    assert "(ATen AVX2)" in known.why_unlike(Arithmetic(4, "ATen AVX512"))
    assert known.checksum != Arithmetic(4, "ATen AVX512").checksum


@pytest.mark.parametrize(
    ("instructions", "pins"),
    [
        (
            "ATen AVX512, oneDNN AVX512, MKL AVX512",
            "set ATEN_CPU_CAPABILITY=avx2, ONEDNN_MAX_CPU_ISA=AVX2 and MKL_CBWR=AVX2 on all hosts",
        ),
        ("oneDNN GenuineIntel AVX512", "; set ONEDNN_MAX_CPU_ISA=AVX2 on all hosts"),
    ],
)
def test_only_the_variables_of_libraries_that_are_used_are_named(
    instructions: str, pins: str
) -> None:
    mine = Arithmetic(1, instructions)
    assert pins in mine.why_unlike(Arithmetic(1, "oneDNN AVX2"))
    assert pins in mine.why_instructions_differ
