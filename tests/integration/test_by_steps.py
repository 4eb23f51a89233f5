"""Training by steps in real jobs: all end after the same one, or the job ends with who left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from paths import SCRIPTS

from edl.testing.job import Job, started

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long]

STEPS = 400


@contextmanager
def joined(way: str, folder: Path, zookeeper: str) -> Iterator[Job]:
    """Run a job of the script that trains by steps in this way; a third worker joins two."""
    words = ["--way", way, "--steps", str(STEPS), "--model", str(folder / "model.pt")]
    script = SCRIPTS / "by_steps.py"
    with started(folder, zookeeper, script, *words, np=2, max_np=3) as job:
        job.wait_for_step(10)
        job.scale(3)
        job.wait_for_size(3)
        yield job


@pytest.mark.parametrize("way", ["steps", "job"])
def test_by_the_count_of_the_job(way: str, tmp_path: Path, zk_hosts: str) -> None:
    """With a join and a death: whoever is there ends after the same step."""
    with joined(way, tmp_path, zk_hosts) as job:
        job.kill("w0")
        assert job.end() == 0, job.describe("did not finish")
        said = [line for line in job.output().splitlines() if "ended at step" in line]
        assert len(said) >= 2, job.describe("too few have ended")
        assert all(line.endswith(f"ended at step {STEPS}") for line in said)
        (finished,) = job.events("finished")
        assert finished["reason"].startswith(f"trained {STEPS} steps")
        assert job.events("checkpoint")[-1]["step"] == STEPS
    assert (tmp_path / "model.pt").exists()


@pytest.mark.parametrize(
    ("way", "does"),
    [
        ("mean", "called edl.mean() at by_steps.py:"),
        ("own", "went on to a batch of epoch"),
        ("hand", "went on to a batch of epoch"),
    ],
)
def test_by_a_count_of_each_workers_own(way: str, does: str, tmp_path: Path, zk_hosts: str) -> None:
    """A newcomer has a lower one: the job has ended with those that began it, and it with them."""
    with joined(way, tmp_path, zk_hosts) as job:
        assert job.end() == 0, job.describe("failed")
        (finished,) = job.events("finished")
        assert finished["reason"].startswith(f"trained {STEPS} steps")
        output = job.output()
        assert f"and after step {STEPS} w0, w1 ended the training while w2 {does}" in output
        assert "and w2 ends with it" in output
        assert job.events("checkpoint")[-1]["step"] == STEPS
        assert "[w3]" not in output, "nobody is replaced"
        assert "[w2] ended at step" not in output
        assert "Traceback" not in output
