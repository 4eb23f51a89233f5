"""Processes that a training script starts: pools, loaders' processes, commands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import forked
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


ENDS = """
import atexit, weakref
class Told:
    def __del__(self):
        print("destroyed", weakref.ref is not None)
one, circle = Told(), [Told()]
circle.append(circle)
file = open("kept", "w")
file.write("all of it")
weakref.finalize(one, print, "finalized")
atexit.register(print, "handler")
print("end")
raise SystemExit(7)
"""


def test_what_tests_fork_ends_as_what_is_started_by_exec(tmp_path: Path) -> None:
    """Although the modules it was forked with are not cleared (tests/site/early_end.py)."""
    kept, words = tmp_path / "kept", ("-c", ENDS)
    started = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert kept.read_text() == "all of it"
    kept.unlink()
    done = forked.python("", words, 60.0, cwd=tmp_path)
    assert kept.read_text() == "all of it"
    assert (done.returncode, done.stdout) == (7, started.stdout)
    assert started.stdout.split() == ["end", "handler", "finalized", *["destroyed", "True"] * 2]
    assert done.stderr == started.stderr == ""
