"""Loss scaling, clipping, skipped steps, weight decay: as one process on the same batches."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from habits import prove_as_one_process
from paths import SCRIPTS

from edl.testing.job import started
from edl.testing.throttle import Throttle

pytestmark = pytest.mark.integration

EPOCHS = 2
SLOW = Throttle(1.0, 25, 10.0)  # a job of about 35 steps


def test_a_job_trains_as_one_process_does(tmp_path: Path, zk_hosts: str) -> None:
    """2 workers, then 3, and uneven batches; more in tests/chaos/test_torch.py."""
    out = tmp_path / "out"
    out.mkdir()
    script = [SCRIPTS / "torch_habits.py", "--out", str(out), "--epochs", str(EPOCHS)]
    with started(tmp_path, zk_hosts, *script, np=2, max_np=3, throttled=SLOW) as job:
        job.wait_for_step(3)
        job.scale(3)
        job.wait_for_size(3)
        job.hurry()
        assert job.end() == 0, job.describe("it failed")
    rows = prove_as_one_process(out, EPOCHS, workers=3)
    assert {row["moved"] for row in rows} == {False, True}


@pytest.mark.long
def test_a_rate_that_follows_an_evaluation_is_the_same_on_all(
    tmp_path: Path, zk_hosts: str
) -> None:
    """BatchNorm's averages are the job's then; a newcomer and a replacement stay."""
    with started(
        tmp_path, zk_hosts, SCRIPTS / "torch_plateau.py", np=2, max_np=3, throttled=SLOW
    ) as job:
        job.wait_for_step(3)
        job.scale(3)
        job.wait_for_size(3)
        job.kill("w1")
        job.wait_for_eviction()
        job.wait_for_size(3)
        job.hurry()
        assert job.end() == 0, job.describe("it failed")
        lines = re.findall(r"epoch \d: .*", job.output())
    assert len({line.split(":")[0] for line in lines}) == 8
    assert len(set(lines)) == 8, lines
