"""How workers end: each end is told once and as what it was, and holds nobody up."""

from __future__ import annotations

import re
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest
from cli_shell import STANDIN, Shell, shell, until
from paths import SCRIPTS
from scenario import Scenario, freeze, scenario

from edl.host.supervision import SupervisorLimits

pytestmark = [pytest.mark.integration]
__all__ = ["shell"]

LIMITS = SupervisorLimits()
BUSY_S = 6.0  # what a busy machine adds to any bound


class Failing(Scenario):
    model = "counting.py"
    session_s = 15.0  # nobody freezes here, and a busy machine must not make it look so

    def words(self) -> list[str]:
        return [str(SCRIPTS / self.model), *super().words()]


@pytest.mark.slow
@pytest.mark.long  # `make test` has the rule: unit/test_host_agent.py
def test_a_slot_that_keeps_failing_is_given_up_and_the_others_count_on(
    tmp_path: Path, zk_hosts: str
) -> None:
    """Twice: by an error and by sys.exit(3), in the midst of a step."""
    failed = tmp_path / "failed"
    failed.mkdir()
    with scenario(
        tmp_path,
        zk_hosts,
        np=3,
        kind=Failing,
        script=SCRIPTS / "failing.py",
        options=("--max-restarts", "1"),
        environment={"FAILS_IN_SLOT": "1", "FAILED": str(failed)},
    ) as job:
        now = job.wait(lambda now: now["disabled_slots"], "end of the crash loop", 240.0)
        assert list(now["disabled_slots"]) == [f"{next(iter(now['hosts']))}:1"]
        job.wait(lambda now: sum(now["desired"].values()) == now["world_size"] == 2, "two workers")
        job.prove(workers=2, errors=True)
        events = job.events()
    fails = [event for event in events if event["kind"] == "worker_failed"]
    assert [(f["exit_code"], f["slot"]) for f in fails] == [(1, 1), (3, 1)], job.output()
    said = fails[0]["termination_message"]
    assert re.fullmatch(r"ValueError: boom \(failing\.py:\d+\)", said)
    assert fails[0]["reason"].endswith(f"exited with code 1; its last line: {said}")
    (disabled,) = [event for event in events if event["kind"] == "slot_disabled"]
    assert "slot 1 of host" in disabled["reason"]
    assert "failed 2 times in a row (--max-restarts is 1)" in disabled["reason"]
    others = [event for event in events if event["kind"] == "worker_exited"]
    assert [event["exit_code"] for event in others] == [0, 0]
    assert "worker_exited" not in job.output()


@pytest.mark.slow
@pytest.mark.parametrize(
    "model", ["counting.py", pytest.param("tf_counting.py", marks=pytest.mark.long)]
)
def test_edl_run_returns_soon_after_the_last_script(
    tmp_path: Path, zk_hosts: str, model: str
) -> None:
    """One process hangs when all is done; the other one evaluates, and has the time for that.

    So has the exit handler of a library that was imported before edl.
    """
    ended = tmp_path / "ended"
    ended.mkdir()
    with scenario(
        tmp_path,
        zk_hosts,
        np=2,
        kind=Failing,
        script=SCRIPTS / "failing.py",
        model=model,
        samples=96,
        epochs=2,
        environment={
            "HANGS_IN_SLOT": "1",
            "EVALUATES_S": "2",
            "FLUSHES_S": "4",
            "ENDED": str(ended),
        },
    ) as job:
        job.wait_for_size(2, 240.0)
        job.hurry()
        job.until(lambda: not psutil.pid_exists(job.agent_pid), "end of edl run", 240.0)
        returned = time.time()
        job.prove(workers=2)
        exits = job.events("worker_exited")
        assert not job.events("worker_failed")
    last = max(float(path.read_text()) for path in ended.iterdir())
    assert len(list(ended.iterdir())) == 2
    assert returned - last < 1.0 + BUSY_S
    assert sorted(event["exit_code"] for event in exits) == [0, 0]
    hung = next(event for event in exits if event["slot"] == 1)
    assert f"the process has not within {LIMITS.exit_s:g} s" in hung["reason"]


def test_workers_that_hang_do_not_keep_edl_run_from_ending(shell: Shell) -> None:
    """Frozen, they hear no SIGTERM and complete no step."""
    job = shell.start(
        *("run", "-np", "2", "--max-np", "2", "--job", "j", "--host", "a"),
        *(sys.executable, STANDIN),
    )
    facts = shell.until_size(2)
    for member in facts["members"]:
        freeze(psutil.Process(member["pid"]))
    began = time.monotonic()
    job.signal(signal.SIGTERM)
    assert job.wait(LIMITS.stuck_s + 3 * BUSY_S) == 143
    assert time.monotonic() - began < LIMITS.stuck_s + BUSY_S
    assert shell.status()["state"] == "stopped"
    exits = [event for event in shell.events() if event["kind"] == "worker_exited"]
    assert len(exits) == 2
    assert all("no step has completed for" in event["reason"] for event in exits)


def test_a_script_that_never_joins_fails_the_job_with_a_sentence(shell: Shell) -> None:
    (shell.directory / "plain.py").write_text("print('trained')\n")
    job = shell.start("run", "-np", "2", "--job", "j", sys.executable, "plain.py")
    assert job.wait() == 1
    assert "edl: job j failed: plain.py ended without calling edl.init()" in job.output
    until(lambda: not shell.processes(), BUSY_S)
