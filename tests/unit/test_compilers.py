"""How many compilers build Horovod at once, by cores, memory and what make has exported."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edl.install import toolchain
from edl.install.toolchain import with_make_flags


@pytest.fixture(autouse=True)
def limit_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Give four cores, 64 GB, and a file for the limit of a container, which is returned."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 16_000_000}.get)
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(toolchain, "LIMITS", (limit,))
    return limit


@pytest.mark.parametrize(
    ("environ", "flags"),
    [
        ({}, "-j4"),
        ({"MAKEFLAGS": ""}, "-j4"),
        ({"MAKEFLAGS": "-j3"}, "-j3"),
        ({"MAKEFLAGS": "", "MAKELEVEL": "1"}, "-j4"),  # make setup
        ({"MAKEFLAGS": " -j8 --jobserver-auth=3,4", "MAKELEVEL": "1", "MFLAGS": "-j8"}, "-j4"),
    ],
)
def test_make_is_told_how_many(environ: dict[str, str], flags: str) -> None:
    assert with_make_flags(environ | {"HOME": "/h"}) == {"HOME": "/h", "MAKEFLAGS": flags}


@pytest.mark.parametrize(
    ("limit", "number"),
    [("max", 4), ("4000000000", 2), ("1000000000", 1), ("9223372036854771712", 4)],
)
def test_a_container_with_little_memory_runs_few(limit_file: Path, limit: str, number: int) -> None:
    limit_file.write_text(f"{limit}\n")
    assert toolchain.compilers() == number
