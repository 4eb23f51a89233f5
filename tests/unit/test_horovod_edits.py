"""The edits fit exactly or nothing is built; the cache key changes with whatever matters."""

from pathlib import Path

import pytest

from edl.errors import BuildError
from edl.install import horovod_edits, horovod_wheel
from edl.install.horovod_edits import EDITS, NO_XLA_OPS
from edl.install.horovod_wheel import Recipe

RECIPE = Recipe("cpython-311", "x86_64", "2.13.0", "2.21.0", ())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A tree in which each edit's anchor occurs as often as it must."""
    for file in {edit.file for edit in EDITS}:
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(edit.anchor * edit.count for edit in EDITS if edit.file == file))
    xla = tmp_path / "horovod/tensorflow/xla_mpi_ops.cc"
    xla.write_text('#include <memory>\n#include "tensorflow/core/a.h"\n')
    return tmp_path


def test_every_edit_is_made(source: Path) -> None:
    horovod_edits.apply(source, EDITS)
    for edit in EDITS:
        assert edit.replacement in (source / edit.file).read_text()


@pytest.mark.parametrize("damage", ["", "twice"])
def test_an_edit_that_does_not_fit_is_named(source: Path, damage: str) -> None:
    edit = EDITS[-1]
    path = source / edit.file
    path.write_text(path.read_text() * (2 if damage else 0))
    with pytest.raises(BuildError, match=edit.name):
        horovod_edits.apply(source, EDITS)


def test_a_missing_file_is_an_edit_that_does_not_fit(source: Path) -> None:
    (source / EDITS[0].file).unlink()
    with pytest.raises(BuildError, match=EDITS[0].file):
        horovod_edits.apply(source, EDITS)


def test_the_xla_file_is_left_out_only_where_tensorflow_lacks_its_header(source: Path) -> None:
    include = source / "include"
    (include / "tensorflow/core").mkdir(parents=True)

    def chosen(folder: Path | None) -> bool:
        return NO_XLA_OPS in {edit.name for edit in horovod_edits.wanted(source, folder)}

    assert chosen(include)
    (include / "tensorflow/core/a.h").touch()
    assert not chosen(include)
    assert not chosen(None)


def test_each_edit_says_what_is_lost_without_it() -> None:
    assert {edit.name for edit in EDITS} == set(horovod_edits.LOST_WITHOUT)


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


def test_without_a_framework_there_is_nothing_to_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovod_wheel, "framework_version", lambda module: None)
    with pytest.raises(BuildError, match="neither torch nor tensorflow"):
        horovod_wheel.recipe(gpu=False, environ={})
