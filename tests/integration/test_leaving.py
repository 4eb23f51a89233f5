"""A worker that leaves a loop alone: one sentence names it, and nobody waits for ever."""

from __future__ import annotations

from pathlib import Path

import pytest
from paths import SCRIPTS

from edl.testing.job import started

pytestmark = [pytest.mark.integration, pytest.mark.slow]

LEAVING = SCRIPTS / "leaving.py"


@pytest.mark.parametrize(
    "epochs", [pytest.param(4, id="for the next epoch", marks=pytest.mark.long), 3]
)
def test_after_an_update(epochs: int, tmp_path: Path, zk_hosts: str) -> None:
    """And all workers may do so: in the first two epochs they do, also with a batch in hand."""
    words = ["--where", "after", "--epochs", str(epochs)]
    with started(tmp_path, zk_hosts, LEAVING, *words, np=2, max_np=2) as job:
        assert job.end() == 1, job.describe("one worker left alone")
        for worker in ("w0", "w1"):
            assert f"[{worker}] epoch 0 left at step 3\n" in job.output()
            assert f"[{worker}] epoch 1 left at step 7\n" in job.output()
        # Each says why, and their agent shows it once.
        sentence = "] edl: w1 left epoch 2 before its end, after 11 steps of the job, and"
        assert job.output().count(sentence) == 1, job.describe("nobody said why")
        assert "Traceback" not in job.output(), job.output()


@pytest.mark.long
def test_with_a_batch_in_hand(tmp_path: Path, zk_hosts: str) -> None:
    """The others wait for its gradients; it is given up, and they go on."""
    words = ["--where", "before", "--epochs", "3"]
    soon = {"EDL_STALL_S": "1"}
    with started(tmp_path, zk_hosts, LEAVING, *words, np=2, max_np=2, environment=soon) as job:
        job.end()
        (line,) = [line for line in job.output().splitlines() if line.startswith("[w1] edl: ")]
        assert "left a loop in the midst of step 11, with a batch in hand" in line
        assert "[w0] epoch 2 left at step" in job.output()
        assert "Traceback" not in job.output(), job.output()
