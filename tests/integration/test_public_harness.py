"""`edl.testing`, as its documentation shows it to users."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import forked
import pytest
from paths import DIGITS, ROOT

TESTING = (ROOT / "docs" / "guides" / "testing.md").read_text()
TRAIN = f"""
import runpy, sys

sys.path.insert(0, {str(DIGITS.parent)!r})
runpy.run_path({str(DIGITS)!r}, run_name="__main__")
"""
BLOCKS = re.findall(r"```python\n(.*?)```", TESTING, re.DOTALL)


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.long  # the harness of nearly all tests beside it
def test_a_users_script_against_a_kill(tmp_path: Path) -> None:
    """The test of the documentation passes where nothing but edl is on the path."""
    (tmp_path / "test_training.py").write_text(BLOCKS[0])
    (tmp_path / "train.py").write_text(TRAIN)
    done = forked.by_exec(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_training.py"],
        300,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_job_in_one_process(capsys: pytest.CaptureFixture[str]) -> None:
    exec(BLOCKS[1], {})
    assert "job finished" in capsys.readouterr().out
