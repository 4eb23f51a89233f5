"""A batch that is trained for padding does not enter what the script counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from paths import SCRIPTS

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
    for mine, other in zip(*reports, strict=True):
        assert mine["batches"] + other["batches"] == 4, story
        assert mine["seen"] + other["seen"] == 3, story
        assert mine["mean"] == other["mean"] == 1.0, story  # of 0, 1, 2
        assert mine["steps"] == other["steps"], story
        assert mine["steps"] in ([0.5, 2.0], [1.0, 1.0], [1.5, 0.0]), story
