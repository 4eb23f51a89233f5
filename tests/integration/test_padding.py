"""A batch that is trained for padding does not enter what the script counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from paths import SCRIPTS
from scenario import scenario

from edl.testing.job import started

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.mark.parametrize("framework", ["torch", pytest.param("tensorflow", marks=pytest.mark.long)])
def test_three_samples_on_two_workers(framework: str, tmp_path: Path, zk_hosts: str) -> None:
    script = [SCRIPTS / "padding.py", framework, str(tmp_path)]
    with started(tmp_path, zk_hosts, *script, np=2, max_np=2) as job:
        assert job.end() == 0, job.describe("it failed")
        story = job.describe("the numbers are wrong")
    reports = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert len(reports) == 2, story
    moving = 0.0
    for mine, other in zip(*reports, strict=True):
        assert mine["batches"] + other["batches"] == 4, story
        assert mine["seen"] + other["seen"] == 3, story
        assert mine["mean"] == other["mean"] == 1.0, story  # of 0, 1, 2
        assert mine["steps"] == other["steps"], story
        assert mine["steps"] in ([0.5, 2.0], [1.0, 1.0], [1.5, 0.0]), story
        for mean in mine["steps"]:
            moving = 0.5 * moving + 0.5 * mean
        if framework == "tensorflow":
            assert mine["moving"] == other["moving"] == pytest.approx(moving), story


@pytest.mark.long  # tests/README.md, Time
@pytest.mark.parametrize("script", ["counting.py", "tf_counting.py"])
def test_a_newcomer_trains_along_until_its_first_batch_is_loaded(
    script: str, tmp_path: Path, zk_hosts: str
) -> None:
    settings: dict[str, Any] = {
        "script": SCRIPTS / script,
        "num_workers": 1,
        "more": ["--late"],
    }
    with scenario(tmp_path, zk_hosts, np=2, max_np=3, **settings) as job:
        job.wait_for_step(5)
        job.scale(3)
        job.wait_for_size(3)
        loaded = job.reports_in / "loaded"
        before = job.status()["step"]
        job.wait_for_step(before + 6)
        assert not loaded.exists(), "the others have not waited for it"
        (job.reports_in / "load").touch()
        job.until(loaded.exists, "first batch")
        job.wait_for_progress()
        job.prove(workers=3)
