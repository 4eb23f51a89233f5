"""A newcomer whose learning rate differs at an epoch's start, too, ends; the others train on."""

from __future__ import annotations

from pathlib import Path

import pytest
from paths import SCRIPTS

from edl.testing.job import started
from edl.testing.throttle import Throttle

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long]


@pytest.mark.parametrize("framework", ["torch", "fit"])
def test_it_ends_and_is_not_replaced(framework: str, tmp_path: Path, zk_hosts: str) -> None:
    script = [SCRIPTS / "own_counter.py", framework, "decay"]
    with started(tmp_path, zk_hosts, *script, np=2, max_np=4, throttled=Throttle()) as job:
        job.wait_for_step(5)
        job.scale(3)
        job.wait(lambda now: bool(now["disabled_slots"]), "a slot is disabled")
        job.hurry()
        code = job.end()
        story = job.describe("it ended otherwise")
        differing, failed = job.events("state_differs"), job.events("worker_failed")
        output = job.output()
    assert code == 0, story
    assert [event["workers"] for event in differing] == [["w2"], ["w3"]], story
    assert "its state differs from that of w0, w1: the learning rate is 0.0" in output, story
    assert "w2 steps back" in output, story
    assert [event["exit_code"] for event in failed] == [78], story
    finals = [line.partition("final")[2] for line in output.splitlines() if "final" in line]
    assert len(finals) == 2, story
    assert len(set(finals)) == 1, story
