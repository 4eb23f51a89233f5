"""A fixed global batch: the same samples in each step, through joins and leaves."""

from __future__ import annotations

from pathlib import Path

import pytest
from trial import trial

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SAMPLES, EPOCHS, BATCH = 1200, 2, 7  # an epoch has 171 global batches and a half


@pytest.mark.long  # tests/README.md, Time
@pytest.mark.parametrize(("loaders", "pieces"), [(0, 0), (2, 0), (2, 2)])
def test_there_are_as_many_steps_as_without_a_change(
    loaders: int, pieces: int, tmp_path: Path, zk_hosts: str
) -> None:
    """``pieces``: samples that a worker trains at once; 0: all of its slice."""
    more = ["--global-batch", str(BATCH), *(["--micro-batch", str(pieces)] if pieces else [])]
    settings = {"samples": SAMPLES, "epochs": EPOCHS, "num_workers": loaders, "more": more}
    with trial(tmp_path, zk_hosts, np=2, max_np=3, options=["--slots", "3"], **settings) as job:
        job.wait_for_step(5)
        job.scale(3)
        job.wait_for_size(3)
        job.wait_for_progress(5)
        job.scale(1)
        job.wait_for_size(1)
        job.wait_for_progress(5)
        (report,) = job.prove(workers=1)
        assert report["steps"] == EPOCHS * -(-SAMPLES // BATCH)


@pytest.mark.long  # the loopback ring has it at every point
def test_a_death_splits_one(tmp_path: Path, zk_hosts: str) -> None:
    more = ["--global-batch", str(BATCH)]
    with trial(tmp_path, zk_hosts, np=3, max_np=3, samples=SAMPLES, epochs=1, more=more) as job:
        job.wait_for_step(5)
        before = job.wait_for_size(3)["generation"]
        job.process(job.leader()).kill()
        job.wait(lambda now: now["generation"] > before, "a repair")
        job.wait_for_size(3)
        (report, *_) = job.prove(workers=3)
        assert report["steps"] - -(-SAMPLES // BATCH) in (0, 1)
