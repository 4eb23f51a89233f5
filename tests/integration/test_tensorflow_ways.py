"""The other ways to write TensorFlow code: each through a join, a leave and a death in a ring."""

from __future__ import annotations

from pathlib import Path

import pytest
from paths import SCRIPTS
from scenario import scenario

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.chaos]

START_S = 200.0  # TensorFlow takes its time to be imported
TF_COUNTING = SCRIPTS / "tf_counting.py"


@pytest.mark.parametrize("mode", ["eager", "feed", "plain", "hook"])
def test_join_leave_and_death(mode: str, tmp_path: Path, zk_hosts: str) -> None:
    """2 -> 3 -> 2 workers; then one of two is killed, and replaced."""
    changes({"EDL_TEST_MODE": mode}, tmp_path, zk_hosts)


@pytest.mark.parametrize("mode", ["function", "eager", "fit", "graph"])
def test_the_script_clips_the_gradients(mode: str, tmp_path: Path, zk_hosts: str) -> None:
    """The same, and each step is what one process would make of its global batch."""
    changes({"EDL_TEST_MODE": mode, "EDL_TEST_CLIP": "0.2"}, tmp_path, zk_hosts)


def changes(environment: dict[str, str], tmp_path: Path, zk_hosts: str) -> None:
    settings = {"script": TF_COUNTING, "epochs": 12, "environment": environment}
    with scenario(tmp_path, zk_hosts, np=2, max_np=3, **settings) as job:
        job.wait_for_step(3, START_S)
        job.scale(3)
        job.wait_for_size(3, START_S)
        job.scale(2)
        job.wait_for_size(2)
        before = job.wait_for_progress()
        job.process(job.plain()).kill()
        job.wait(lambda now: now["generation"] >= before["generation"] + 2, "a repair", START_S)
        job.wait_for_size(2, START_S)
        job.prove(workers=2)


def test_a_session_that_cannot_be_repaired(tmp_path: Path, zk_hosts: str) -> None:
    """One operation at a time: a variable cannot be read while the step waits for its gradients."""
    environment = {"EDL_TEST_MODE": "plain", "EDL_TEST_THREADS": "1"}
    settings = {"script": TF_COUNTING, "environment": environment}
    with scenario(tmp_path, zk_hosts, np=2, **settings) as job:
        job.wait_for_step(3, START_S)
        job.process(job.plain()).kill()
        assert job.end(START_S) != 0, job.describe("it ended well")
        output = job.output()
    assert "edl: a step was interrupted, and this session cannot be repaired inside of it" in output
    assert "Traceback" not in output, output
