"""Loss scaling, clipping, skipped steps, weight decay: as one process on the same batches."""

from __future__ import annotations

from pathlib import Path

import pytest
from habits import prove_as_one_process
from paths import SCRIPTS

from edl.testing.job import started

pytestmark = pytest.mark.integration

EPOCHS = 3


def test_a_job_trains_as_one_process_does(tmp_path: Path, zk_hosts: str) -> None:
    """2 workers, then 3, and uneven batches; more in tests/chaos/test_torch.py."""
    out, slow = tmp_path / "out", tmp_path / "slow"
    out.mkdir()
    slow.touch()
    options = ["--out", str(out), "--epochs", str(EPOCHS), "--slow", str(slow)]
    script = SCRIPTS / "torch_habits.py"
    with started(tmp_path, zk_hosts, script, *options, np=2, max_np=3) as job:
        job.wait_for_step(3)
        job.scale(3)
        job.wait_for_size(3)
        slow.unlink()
        assert job.end() == 0, job.describe("it failed")
    rows = prove_as_one_process(out, EPOCHS, workers=3)
    assert {row["moved"] for row in rows} == {False, True}
