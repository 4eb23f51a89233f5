"""An engine sends SIGTERM to every process of a host: they leave in one switch."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from scenario import scenario

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long]

GATHER_S = 20.0  # however busy the machine is


@pytest.mark.parametrize("agent", [False, True], ids=["workers", "workers and agent"])
def test_it_leaves_in_one_switch(agent: bool, tmp_path: Path, zk_hosts: str) -> None:
    """Two workers each on the hosts a and b; each sample counts once an epoch all the same."""
    options = ["--host", "a", "--slots", "2"]
    slow = {"EDL_LEAVE_GATHER_S": str(GATHER_S)}
    with scenario(
        tmp_path, zk_hosts, np=2, max_np=4, options=options, environment=slow, samples=960
    ) as job:
        job.wait_for_step(1)
        other = job.join_as("b", np=2)
        members = job.wait_for_size(4)["members"]
        before = job.status()["generation"]
        workers = [one["pid"] for one in members if one["host"] == "b"]
        assert len(workers) == 2
        signalled = [workers[0], *([other.pid] if agent else []), workers[1]]
        began = time.monotonic()
        for pid in signalled:
            os.kill(pid, signal.SIGTERM)
            time.sleep(0.05)  # an engine's signals do not arrive together
        now = job.wait_for_size(2)
        assert time.monotonic() - began < GATHER_S, "it is known at once that all of b leave"
        assert now["desired"] == {"a": 2, "b": 0}
        assert now["generation"] == before + 1, job.describe("more than one switch")
        if agent:
            assert other.wait(30) == 0
        job.prove(workers=2)
        assert other.wait(30) == 0
        (left,) = [e for e in job.events("generation") if e["left"]]
        assert sorted(left["left"]) == ["w2", "w3"]


def test_all_workers_get_it_and_one_is_started_for_min_np(tmp_path: Path, zk_hosts: str) -> None:
    with scenario(tmp_path, zk_hosts, np=2, options=["--host", "a"], samples=960) as job:
        job.wait_for_step(1)
        for one in job.status()["members"]:
            os.kill(one["pid"], signal.SIGTERM)
        job.wait(lambda now: [m["id"] for m in now["members"]] == ["w2"], "one replacement")
        job.prove()
        assert job.events("evicted") == [], "a worker was started in vain"
