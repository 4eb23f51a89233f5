"""`edl chaos` on a job that trains: each fault is told with its recovery, and harms nothing."""

from __future__ import annotations

import json
from pathlib import Path

import forked
import pytest
from fault_scenario import START_S, FaultScenario, fault_scenario, training

from edl.testing.job import EDL

OPEN = {"EDL_CHAOS": "1"}

pytestmark = pytest.mark.chaos


@pytest.mark.parametrize("model", [{}, training("fit")], ids=["pytorch", "tensorflow"])
def test_faults_and_what_they_caused(model: dict[str, str], tmp_path: Path, zk_hosts: str) -> None:
    with fault_scenario(
        tmp_path, zk_hosts, np=3, max_np=3, epochs=4, environment=OPEN | model
    ) as job:
        before = job.wait_for_size(3, START_S)
        (kill,) = struck(job, "--kill", f"leader@step={before['step'] + 5}")
        assert kill["leader"]
        assert kill["step"] >= before["step"] + 5
        assert kill["worker"] == before["leader"]
        assert kill["generation"] > before["generation"]
        assert {"detect_s", "election_s", "wait_s", "init_s", "broadcast_s"} <= kill["parts"].keys()
        assert kill["stall_s"] > 0

        every = ["--every", "500ms", "--count", "4", "--seed", "5", "--for", "1s"]
        what = ["--cut", "worker", "--expire-session", "leader", "--freeze", "worker"]
        faults = struck(job, *what, *every)
        assert len(faults) == 4
        assert {fault["action"] for fault in faults} <= {"cut", "expire-session", "freeze"}

        name = job.wait_for_size(3, START_S)["members"][0]["id"]
        job.expire(name)
        job.cut(name)
        job.prove()


def struck(job: FaultScenario, *words: str) -> list[dict[str, object]]:
    """Run `edl chaos` and return the faults it reports, all of which the job must recover from."""
    faults = [json.loads(line) for line in job.edl("chaos", "--json", *words).splitlines()]
    assert all(fault["recovered"] for fault in faults), job.describe(f"{faults}")
    return faults


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["no-job", "--kill", "boss"], 2, "--kill 'boss' names nobody: write leader"),
        (["no-job"], 2, "nothing to do; give at least one of --kill"),
        (["no-job", "--kill", "w1", "--count", "2"], 2, "--count needs --every"),
        (["no-job", "--kill", "w1", "--limit", "now"], 2, "--limit 'now' is no duration"),
        (["no-job", "--kill", "w1"], 94, "there is no job named 'no-job'"),
    ],
)
def test_what_cannot_be_done_gets_a_sentence(
    words: list[str], code: int, message: str, tmp_path: Path, zk_hosts: str
) -> None:
    environment = FaultScenario(tmp_path, zk_hosts).environment
    done = forked.by_exec([EDL, "chaos", *words], 60, env=environment)
    assert done.returncode == code, done.stderr
    assert done.stderr.startswith(f"edl: {message}"), done.stderr
    assert done.stderr.count("\n") == 1
