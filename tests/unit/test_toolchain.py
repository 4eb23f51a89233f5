"""What the build of Horovod runs is installed wherever edl installs things, and looked for."""

import re
import shlex
from pathlib import Path

import pytest

from edl.install import toolchain

ROOT = Path(__file__).resolve().parents[2]
HEADERS = "Python.h"  # no program: an image of Python has it, Debian's python3-dev brings it
PROGRAMS = {tool.name for tool in toolchain.tools()} - {HEADERS} | {"cmake"}


def test_the_image_installs_them() -> None:
    text = (ROOT / "recipes" / "kubernetes" / "Dockerfile").read_text()
    (packages,) = re.findall(r"apt-get install (.+?) \\$", text, flags=re.MULTILINE)
    assert {word for word in shlex.split(packages) if word[0] != "-"} == PROGRAMS


def test_the_set_up_installs_them() -> None:
    text = (ROOT / "scripts" / "setup.sh").read_text()
    looked_for = re.findall(r"^ +command -v (\S+) >/dev/null \|\| echo (\S+)$", text, re.MULTILINE)
    assert {(program, program) for program in PROGRAMS} <= set(looked_for)
    assert "echo python3-dev" in text


@pytest.mark.parametrize("tool", toolchain.tools(), ids=lambda tool: tool.name)
def test_each_remedy_names_a_package_that_the_set_up_installs(tool: toolchain.Tool) -> None:
    package = tool.remedy.rpartition(" ")[2].rstrip(")")
    assert f"echo {package}" in (ROOT / "scripts" / "setup.sh").read_text()


def test_the_set_up_starts_anew_when_a_patch_changes() -> None:
    text = (ROOT / "scripts" / "setup.sh").read_text()
    (files,) = re.findall(r"cat (.+) \| sha256sum", text)
    assert "edl/install/patches/*.patch" in files.split()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (None, r"there is no nvcc on PATH, in CUDA_HOME or in \S+; install the whole CUDA toolkit"),
        (
            "echo 'warning: old'; echo 'fatal error: no cuda_runtime.h' >&2; exit 1",
            "no program [(]fatal",
        ),
        ("exit 0", r"compiles no program \(no output\)"),
        ("for last; do :; done; touch $last", "^$"),
    ],
)
def test_it_is_said_what_a_cuda_toolkit_lacks(
    script: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "CUDA", str(tmp_path / "none"))
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    if script is not None:
        nvcc.write_text(f"#!/bin/sh\n{script}\n")
        nvcc.chmod(0o755)
    for environ in ({"PATH": str(nvcc.parent)}, {"CUDA_HOME": str(tmp_path)}):
        assert re.search(said, toolchain.cuda_failure(environ))
