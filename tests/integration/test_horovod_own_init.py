"""A script that still imports horovod, under `edl run`: refused, not trained N times in parallel.

The patch is applied to a copy of the installed Horovod, so it is tested whichever build that is.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import forked
import horovod.common.basics
import pytest
from cli_shell import Shell, shell

from edl.errors import REFUSED_EXIT
from edl.install import horovod_wheel

pytestmark = [pytest.mark.integration]
__all__ = ["shell"]

OWN_INIT = "own-init-is-an-error"
SENTENCE = "edl: this script calls horovod's init() under `edl run`, and each worker would train"


@pytest.fixture
def patched(tmp_path: Path) -> Path:
    """Return a directory for PYTHONPATH with this patch of Horovod, whose other files are links."""
    installed = Path(horovod.common.basics.__file__).parents[1]
    copy = tmp_path / "patched" / "horovod"
    for folder, left_out in ((Path(), "common"), (Path("common"), "basics.py")):
        (copy / folder).mkdir(parents=True)
        for one in (installed / folder).iterdir():
            if one.name not in (left_out, "__pycache__"):
                (copy / folder / one.name).symlink_to(one)
    text = (installed / "common" / "basics.py").read_text()
    (copy / "common" / "basics.py").write_text(text)
    if SENTENCE not in text:
        (own_init,) = (one for one in horovod_wheel.patches() if one.name == OWN_INIT)
        horovod_wheel.apply(copy.parent, [own_init])
    return copy.parent


@pytest.mark.slow
@pytest.mark.parametrize(
    "module", ["torch", pytest.param("tensorflow.keras", marks=pytest.mark.long)]
)
def test_a_script_that_calls_horovods_init_fails_the_job_with_a_sentence(
    shell: Shell, patched: Path, module: str
) -> None:
    shell.environment["PYTHONPATH"] = str(patched)
    (shell.directory / "train.py").write_text(
        f"import horovod.{module} as hvd\nhvd.init()\nprint('it trains alone')\n"
    )
    job = shell.start("run", "-np", "1", "--job", "j", sys.executable, "train.py")
    assert job.wait(120.0) == REFUSED_EXIT
    assert shell.status()["reason"].startswith(SENTENCE)
    assert job.output.count(f"[slot 0] {SENTENCE}") <= 1, "it was not started again"
    assert "Traceback" not in job.output
    assert "it trains alone" not in job.output


@pytest.mark.long  # tests/README.md, Time
def test_edl_itself_calls_it_and_a_script_may_import_both(tmp_path: Path, patched: Path) -> None:
    script = tmp_path / "both.py"
    script.write_text(
        "import horovod.torch as hvd\nimport edl.torch as edl\n"
        "edl.init()\nprint('size', edl.size(), hvd.Sum == edl.Sum, flush=True)\nhvd.init()\n"
    )
    environment = os.environ | {"PYTHONPATH": str(patched), "EDL_LAUNCH": "t-0"}
    done = forked.by_exec([sys.executable, script], 120, env=environment)
    assert done.stdout == "size 1 True\n", done.stderr
    assert done.returncode == REFUSED_EXIT
    assert done.stderr.startswith(SENTENCE)
    assert done.stderr.count("\n") == 1
