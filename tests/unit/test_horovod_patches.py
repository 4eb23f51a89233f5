"""The patches fit exactly or nothing is built; the cache key changes with whatever matters."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from edl.errors import REFUSED_EXIT, BuildError
from edl.horovod_build import ADDRESS, EDL_CALLS, MARKER
from edl.install import horovod_wheel, toolchain
from edl.install import horovod_wheel as horovod_patches
from edl.install.horovod_wheel import GPU_ONLY, NO_XLA_OPS, Patch, Recipe, patches
from edl.ring.rendezvous import BULK

RECIPE = Recipe("cpython-311", "x86_64", "2.13.0", "2.21.0", ())
NAMES = [patch.name for patch in patches()]
LINES = [f"line {number}\n" for number in range(1, 10)]
DIFF = """Why.

Lost without it: this,
and that

--- a/horovod/file.cc
+++ b/horovod/file.cc
@@ -2,7 +2,7 @@
 line 2
 line 3
 line 4
-line 5
+line five
 line 6
 line 7
 line 8
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a tree with one file and one with TensorFlow's XLA operations."""
    folder = tmp_path / "source" / "horovod"
    (folder / "tensorflow").mkdir(parents=True)
    (folder / "file.cc").write_text("".join(LINES))
    xla = folder / "tensorflow" / "xla_mpi_ops.cc"
    xla.write_text('#include <memory>\n#include "tensorflow/core/a.h"\n')
    return folder.parent


@pytest.fixture
def patch(tmp_path: Path) -> Patch:
    path = tmp_path / "01-better.patch"
    path.write_text(DIFF)
    return horovod_patches.patches(tmp_path)[0]


def test_a_patch_is_applied_and_says_what_is_lost_without_it(source: Path, patch: Patch) -> None:
    assert (patch.name, patch.lost) == ("better", "this, and that")
    horovod_patches.apply(source, [patch])
    assert (source / "horovod/file.cc").read_text() == "".join(LINES).replace("5", "five")


@pytest.mark.parametrize(
    ("old", "new"),
    [("line 5\n", "line 6\n"), ("line 2\n", "line 3\n"), ("line 5\n", "line five\n"), ("line", "")],
    ids=["what it replaces", "only its context", "applied before", "all"],
)
def test_a_patch_that_does_not_fit_exactly_is_named(
    source: Path, patch: Patch, old: str, new: str
) -> None:
    path = source / "horovod" / "file.cc"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(BuildError, match=r"01-better\.patch does not fit .*horovod/file\.cc"):
        horovod_patches.apply(source, [patch])


def test_a_missing_file_is_a_patch_that_does_not_fit(source: Path, patch: Patch) -> None:
    (source / "horovod" / "file.cc").unlink()
    with pytest.raises(BuildError, match=r"01-better\.patch does not fit"):
        horovod_patches.apply(source, [patch])


def test_a_missing_program_is_named(
    source: Path, patch: Patch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(source))
    with pytest.raises(BuildError, match=r"the program `patch` did not apply 01-better\.patch"):
        horovod_patches.apply(source, [patch])


def test_the_patches_are_numbered_and_each_has_a_reason() -> None:
    assert [int(patch.path.name[:2]) for patch in patches()] == list(range(1, len(NAMES) + 1))
    assert len(set(NAMES)) == len(NAMES)
    assert all(patch.path.read_text()[0].isalpha() for patch in patches())
    building = {"cxx20", "newer-compilers", "sysconfig", "quick-build", "marker", NO_XLA_OPS}
    building.add("gpu-if-asked")
    assert {patch.name for patch in patches() if not patch.lost} == building


def test_the_xla_file_is_left_out_only_where_tensorflow_lacks_its_header(source: Path) -> None:
    include = source / "include"
    (include / "tensorflow/core").mkdir(parents=True)

    def chosen(folder: Path | None) -> bool:
        wanted = [patch.name for patch in horovod_patches.wanted(source, folder, gpu=True)]
        assert wanted == NAMES or [*wanted, NO_XLA_OPS] == NAMES  # the last: lines stay in place
        return NO_XLA_OPS in wanted

    assert chosen(include)
    (include / "tensorflow/core/a.h").touch()
    assert not chosen(include)
    assert not chosen(None)


def test_what_gpus_need_changes_nothing_of_a_build_for_cpus(source: Path, tmp_path: Path) -> None:
    wanted = [patch.name for patch in horovod_patches.wanted(source, None, gpu=False)]
    assert [*NAMES[:-1]] == sorted({*wanted, *GPU_ONLY}, key=NAMES.index)
    assert not GPU_ONLY.intersection(wanted)
    changed = tmp_path / "changed"
    shutil.copytree(horovod_patches.FOLDER, changed)
    for patch in patches():
        if patch.name in GPU_ONLY:
            (changed / patch.path.name).write_bytes(patch.path.read_bytes() + b"\n")
    fingerprint = horovod_patches.fingerprint
    assert fingerprint(gpu=False) == fingerprint(changed, gpu=False) != fingerprint(gpu=True)
    assert fingerprint(gpu=True) != fingerprint(changed, gpu=True)
    assert RECIPE.key != with_variables(HOROVOD_GPU_OPERATIONS="NCCL").key
    assert not RECIPE.gpu
    assert with_variables(HOROVOD_GPU_OPERATIONS="NCCL").gpu
    assert not with_variables(HOROVOD_DEBUG="1").gpu


def test_the_patches_and_edl_agree() -> None:
    text = {patch.name: patch.path.read_text() for patch in patches()}
    assert f"'{MARKER}'" in text["marker"]
    assert f"'{EDL_CALLS}'" in text["own-init-is-an-error"]
    assert f"SystemExit({REFUSED_EXIT})" in text["own-init-is-an-error"]
    assert ADDRESS in text
    assert f'std::getenv("{BULK}")' in text["bulk-rendezvous"]


def test_the_fingerprint_is_of_names_and_bytes(tmp_path: Path) -> None:
    here = horovod_patches.FOLDER
    there, renamed, changed = (tmp_path / name for name in ("there", "renamed", "changed"))
    for folder in (there, renamed, changed):
        shutil.copytree(here, folder)
    (renamed / "01-cxx20.patch").rename(renamed / "01-cxx21.patch")
    (changed / "01-cxx20.patch").write_bytes((here / "01-cxx20.patch").read_bytes() + b"\n")
    fingerprint = horovod_patches.fingerprint
    assert fingerprint(gpu=True) == fingerprint(here, gpu=True) == fingerprint(there, gpu=True)
    assert len({fingerprint(folder, gpu=True) for folder in (here, renamed, changed)}) == 3


@pytest.mark.parametrize(
    "other",
    [
        Recipe("cpython-312", "x86_64", "2.13.0", "2.21.0", ()),
        Recipe("cpython-311", "aarch64", "2.13.0", "2.21.0", ()),
        Recipe("cpython-311", "x86_64", "2.12.0", "2.21.0", ()),
        Recipe("cpython-311", "x86_64", None, "2.21.0", ()),
        Recipe("cpython-311", "x86_64", "2.13.0", None, ()),
        Recipe("cpython-311", "x86_64", "2.13.0", "2.21.0", (("HOROVOD_NCCL_HOME", "/n"),)),
    ],
)
def test_another_recipe_has_another_key(other: Recipe) -> None:
    assert other.key != RECIPE.key


def test_frameworks_that_are_not_there_are_built_without() -> None:
    variables = Recipe("cpython-311", "x86_64", "2.13.0", None, ()).environment
    assert variables["HOROVOD_WITH_PYTORCH"] == "1"
    assert variables["HOROVOD_WITHOUT_TENSORFLOW"] == "1"
    assert "HOROVOD_WITH_TENSORFLOW" not in variables


def test_gpu_passes_horovods_own_variables_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovod_wheel, "framework_version", lambda module: "1.0")
    environ = {"HOROVOD_NCCL_HOME": "/nccl", "HOROVOD_RANK": "3", "HOROVOD_CUDA_HOME": ""}
    assert horovod_wheel.recipe(gpu=False, environ=environ).variables == ()
    assert horovod_wheel.recipe(gpu=True, environ=environ).variables == (
        ("HOROVOD_GPU_OPERATIONS", "NCCL"),
        ("HOROVOD_NCCL_HOME", "/nccl"),
    )
    one = environ | {"HOROVOD_GPU_ALLREDUCE": "NCCL"}  # Horovod refuses both together
    assert "HOROVOD_GPU_OPERATIONS" not in dict(
        horovod_wheel.recipe(gpu=True, environ=one).variables
    )


@pytest.fixture
def nvidia(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give the folder of NCCL in an installed Python package, as PyTorch's wheels require it."""
    folder = tmp_path / "site" / "nvidia" / "nccl"
    for name in ("include/nccl.h", "lib/libnccl.so.2"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(name)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    real = sys.modules.pop("nvidia", None)
    yield folder
    sys.modules.pop("nvidia", None)
    if real is not None:
        sys.modules["nvidia"] = real


def with_variables(**variables: str) -> Recipe:
    return Recipe("cpython-312", "x86_64", "2.11.0", None, tuple(sorted(variables.items())))


@pytest.mark.parametrize("name", ["HOROVOD_GPU_OPERATIONS", "HOROVOD_GPU_ALLREDUCE"])
def test_a_gpu_build_uses_the_nccl_of_pytorch(nvidia: Path, tmp_path: Path, name: str) -> None:
    assert toolchain.packaged_nccl() == nvidia
    folder = tmp_path / "nccl"
    assert horovod_wheel.nccl_variables(with_variables(**{name: "NCCL"}), folder) == {
        "HOROVOD_NCCL_HOME": str(folder),
        "HOROVOD_NCCL_LINK": "SHARED",  # else Horovod takes a static one of the system, if it can
    }
    assert (folder / "include/nccl.h").read_text() == "include/nccl.h"
    assert (folder / "lib/libnccl.so").read_text() == "lib/libnccl.so.2"


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"HOROVOD_GPU_OPERATIONS": "MPI"},
        {"HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_NCCL_HOME": "/opt/nccl"},
        {"HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_NCCL_LINK": "STATIC"},
    ],
)
@pytest.mark.usefixtures("nvidia")
def test_another_choice_of_nccl_is_left_alone(variables: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "nccl"
    assert horovod_wheel.nccl_variables(with_variables(**variables), folder) == {}
    assert not folder.exists()


def test_without_that_package_horovod_looks_for_nccl_itself(nvidia: Path, tmp_path: Path) -> None:
    (nvidia / "lib/libnccl.so.2").unlink()
    recipe = with_variables(HOROVOD_GPU_OPERATIONS="NCCL")
    assert horovod_wheel.nccl_variables(recipe, tmp_path / "nccl") == {}


@pytest.mark.parametrize(
    ("environ", "found"), [({}, "/cuda"), ({"CUDA_HOME": "/usr/local/cuda"}, "/usr/local/cuda")]
)
def test_pytorch_looks_for_cuda_where_horovod_does(
    environ: dict[str, str], found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(horovod_wheel.config, "environment", lambda: environ)
    build = horovod_wheel._Build(with_variables(HOROVOD_CUDA_HOME="/cuda"), Console())
    assert build._environment(tmp_path)["CUDA_HOME"] == found
    tools, cuda = build._environment(tmp_path)["PATH"].split(":")[:2]
    assert (tools, cuda) == (str(tmp_path / "bin"), "/cuda/bin")
    build = horovod_wheel._Build(with_variables(), Console())
    assert build._environment(tmp_path).get("CUDA_HOME") == environ.get("CUDA_HOME")


def test_without_a_framework_there_is_nothing_to_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovod_wheel, "framework_version", lambda module: None)
    with pytest.raises(BuildError, match="neither torch nor tensorflow"):
        horovod_wheel.recipe(gpu=False, environ={})
