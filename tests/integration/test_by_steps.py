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


def test_a_worker_that_asks_for_a_mean_when_others_have_ended(
    tmp_path: Path, zk_hosts: str
) -> None:
    with joined("mean", tmp_path, zk_hosts) as job:
        assert job.end() == 1, job.describe("not failed")
        (failed,) = job.events("job_failed")
        sentence = f"ended its script after step {STEPS}, and others train on, in edl.mean()"
        assert sentence in failed["reason"]
        assert "Traceback" not in job.output()


@pytest.mark.parametrize("way", ["own", "hand"])
def test_by_a_count_of_each_workers_own(way: str, tmp_path: Path, zk_hosts: str) -> None:
    """A newcomer has a lower one: one sentence names who left, and it takes over nothing."""
    with joined(way, tmp_path, zk_hosts) as job:
        assert job.end() == 1, job.describe("not failed")
        (failed,) = job.events("job_failed")
        sentence = f"w0 and w1 ended their script after step {STEPS}, "
        assert failed["reason"].startswith(sentence)
        assert "and w2 trains on; all workers must end after the same step" in failed["reason"]
        assert job.events("checkpoint")[-1]["step"] == STEPS
        assert "[w3]" not in job.output(), "nobody is replaced"
        assert "[w2] ended at step" not in job.output()
        assert "Traceback" not in job.output()
