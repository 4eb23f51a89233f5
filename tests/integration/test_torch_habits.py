"""Loss scaling, clipping, skipped steps, weight decay: as one process on the same batches."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch
from jobs import SCRIPTS, started
from steplog import read_steps

sys.path.insert(0, str(SCRIPTS))
from torch_habits import SAMPLES, Training

pytestmark = pytest.mark.integration

EPOCHS = 3


def test_a_job_trains_as_one_process_does(tmp_path: Path, zk_hosts: str) -> None:
    """2 workers, then 3, and uneven batches: each step is that of one process."""
    out = tmp_path / "out"
    out.mkdir()
    slow = tmp_path / "slow"
    slow.touch()
    options = ["--out", str(out), "--epochs", str(EPOCHS), "--slow", str(slow)]
    script = SCRIPTS / "torch_habits.py"
    with started(tmp_path, zk_hosts, script, *options, np=2, max_np=3) as job:
        job.wait_for_step(3)
        job.scale(3)
        job.wait_for_size(3)
        slow.unlink()
        assert job.end() == 0, job.story("it failed")
    steps, finals = read_steps(out)
    assert len(finals) == 3
    assert sorted(steps) == list(range(finals[0]["steps"]))

    alone, skipped = Training(), 0
    trained = dict.fromkeys(range(EPOCHS), 0)
    for step in sorted(steps):
        rows = steps[step]
        indices = [index for row in rows for index in row["indices"]]
        trained[rows[0]["epoch"]] += len(indices)
        expected = alone.train(torch.tensor(indices), rows[0]["epoch"])
        assert len({row["epoch"] for row in rows}) == 1
        for row in rows:
            assert row["weights"] == pytest.approx(expected["weights"], abs=1e-9), (step, row)
            assert (row["scale"], row["has"]) == (expected["scale"], expected["has"]), (step, row)
            assert (row["norm"] == pytest.approx(expected["norm"])) or not math.isfinite(
                expected["norm"]
            ), (step, row)
            assert row["moved"] == expected["moved"], (step, row)
        skipped += not expected["moved"]
    assert skipped == 1, "the one that overflows"
    assert trained == dict.fromkeys(range(EPOCHS), SAMPLES)
    for final in finals:
        assert final == finals[0]
        assert final["final"][8:12] == [1.0] * 4, "no weight decay without a gradient"
