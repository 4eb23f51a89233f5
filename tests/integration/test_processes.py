"""Processes that a training script starts: pools, loaders' processes, commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from paths import SCRIPTS

from edl.testing.job import started

pytestmark = pytest.mark.integration

POOLS = SCRIPTS / "pools.py"


@pytest.mark.long
def test_pools_in_every_step(tmp_path: Path, zk_hosts: str) -> None:
    """Fork, spawn, fork server, executors, subprocesses; a loader's process by fork and spawn."""
    with started(tmp_path, zk_hosts, POOLS, np=2, max_np=2) as job:
        assert job.end(180.0) == 0, job.describe("it failed")
        for way in ("fork", "spawn"):
            assert f"trained 12 steps with a loader's process by {way}" in job.output()


def test_a_spawned_process_does_not_take_part_in_the_job(tmp_path: Path, zk_hosts: str) -> None:
    with started(tmp_path, zk_hosts, POOLS, "unguarded", np=1, max_np=1) as job:
        sentence = (
            "edl: edl.init() was called in a process that multiprocessing has started, which is "
        )
        job.wait(lambda _now: sentence in job.output(), "refusal of the pool's process")
        assert [member["id"] for member in job.status()["members"]] == ["w0"]
        assert "Traceback" not in job.output(), job.describe("it is shown with a traceback")
