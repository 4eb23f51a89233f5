"""A job outlives all its workers, and a stop: by the counting model, no sample twice, none lost."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import forked
import psutil
import pytest
from paths import SCRIPTS

from edl.checkpoint import format as files
from edl.job.run import HALTED_EXIT
from edl.testing.job import WAIT_S, Job, started
from edl.testing.throttle import Throttle

pytestmark = [pytest.mark.integration, pytest.mark.slow]

COUNTING = SCRIPTS / "counting.py"
SAMPLES, EPOCHS = 240, 3
SLOW = Throttle(0.1, 70, 2.0)  # with one worker it has 180 steps
SLOWER = Throttle(0.3, 40, 5.0)  # for two workers, with 90 steps


class Scenario:
    """A counting job that saves into ``<directory>/saved``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.saved = directory / "saved"
        self.out = directory / "out"
        self.out.mkdir()

    def script(self, *more: str, samples: int = SAMPLES, epochs: int = EPOCHS) -> list[str]:
        size = ["--samples", str(samples), "--epochs", str(epochs)]
        return [str(COUNTING), "--out", str(self.out), "--checkpoint", str(self.saved),
                *size, *more]  # fmt: skip

    def prove(self, workers: int, story: str) -> list[dict[str, Any]]:
        """Every worker at the end has counted each sample once an epoch, and they agree."""
        reports = [json.loads(path.read_text()) for path in self.out.glob("*.json")]
        assert len(reports) == workers, story
        for report in reports:
            assert report["wrong"] == [], story
            assert report["counts"] == {str(EPOCHS): SAMPLES}, story
            for epoch in report["epochs"]:
                assert epoch["counts"] == {str(epoch["epoch"] + 1): SAMPLES}, story
        assert len({report["w_sha256"] for report in reports}) == 1, story
        return reports

    @property
    def newest(self) -> files.Manifest:
        return files.read_manifest(files.checkpoint_files(self.saved)[0])


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    return Scenario(tmp_path)


def wait_for_event(job: Job, kind: str, timeout_s: float = WAIT_S) -> dict[str, Any]:
    deadline = time.monotonic() + timeout_s
    while not (events := job.events(kind)):
        assert time.monotonic() < deadline, job.describe(f"no event {kind}")
        time.sleep(0.1)
    return events[0]


def test_a_job_outlives_all_its_workers(scenario: Scenario, zk_hosts: str) -> None:
    """It goes on from a checkpoint that its workers have written together."""
    script = scenario.script("--every", "0.5", "--sharded", "--keep", "99")
    with started(scenario.directory, zk_hosts, *script, np=2, max_np=2, throttled=SLOW) as job:
        job.wait_for_step(12 + random.Random("all at once").randrange(30))
        for pid in job.workers(COUNTING):
            os.kill(pid, signal.SIGKILL)
        resumed = wait_for_event(job, "resumed")
        assert re.fullmatch(
            r"all 2 workers died; resumed from step \d+, at least \d+ steps? lost",
            resumed["reason"],
        )
        job.hurry()
        assert job.end() == 0, job.describe("it failed")
        assert resumed["reason"] in job.output()
        found = files.read_records(Path(resumed["path"]))
        assert {record.file.split("-")[0] for record in found.values()} == {"part"}
        assert len({record.file for record in found.values()}) == 2
        saves = job.events("checkpoint")
        assert {"bytes", "capture_s", "write_s", "path"} <= saves[-1].keys()
        reports = scenario.prove(2, job.describe("the counts are wrong"))
    assert {report["rings"][0]["step"] for report in reports} == {resumed["step"]}
    assert scenario.newest.step == reports[0]["steps"]


def test_a_job_without_its_last_checkpoint_has_not_done_all(
    scenario: Scenario, zk_hosts: str
) -> None:
    """The disk is full at the end: it has trained, and says what is lacking, as its exit code."""
    scenario.saved.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "edl-test", scenario.saved], check=True
    )
    try:
        script = scenario.script("--every", "1000")
        with started(scenario.directory, zk_hosts, *script, np=2, max_np=2, throttled=SLOW) as job:
            job.wait_for_step(3)
            wait_for_event(job, "checkpoint")
            with contextlib.suppress(OSError), (scenario.saved / "filling").open("wb") as file:
                while True:
                    file.write(bytes(65536))
            job.hurry()
            assert job.end() == 1, job.describe("it ended well")
            story = job.describe("it is not said")
            assert job.status()["state"] == "finished", story
            steps = scenario.prove(2, story)[0]["steps"]
            reason = (
                f"trained {steps} steps, but the checkpoint of step {steps} was not written: "
                f"No space left on device: {files.path_of(scenario.saved, steps)}"
            )
            assert job.status()["reason"] == reason, story
            assert f"edl: job {job.name} finished: {reason}" in job.output(), story
    finally:
        subprocess.run(["umount", scenario.saved], check=True)


def test_without_a_checkpoint_the_job_has_failed(scenario: Scenario, zk_hosts: str) -> None:
    script = [COUNTING, "--out", str(scenario.out)]
    with started(scenario.directory, zk_hosts, *script, np=2, max_np=2, throttled=SLOW) as job:
        job.wait_for_step(3)
        for pid in job.workers(COUNTING):
            os.kill(pid, signal.SIGKILL)
        assert job.end(timeout_s=30) == 128 + signal.SIGKILL
        assert "there is no checkpoint to resume from" in job.output()


def test_a_preempted_job_is_resumed_with_more_workers(scenario: Scenario, zk_hosts: str) -> None:
    """The first start finds nothing to resume, and may: ``--resume=auto``."""
    script, auto = scenario.script("--num-workers", "2"), ["--resume=auto"]
    first = {"np": 1, "max_np": 1, "options": auto, "throttled": SLOW}
    with started(scenario.directory, zk_hosts, *script, **first) as job:
        job.wait_for_step(65)  # in the second epoch
        said = job.edl("preempt", "--within", "2m")
        assert job.end() == HALTED_EXIT, job.describe("it failed")
        stopped = scenario.newest
        reason = (
            f"edl preempt --within 120s: step {stopped.step} is saved in {scenario.saved}; "
            "`edl run --resume` goes on"
        )
        assert said == f"job {job.name} is stopped: {reason}\n"
        assert f"edl: job {job.name} stopped: {reason}" in job.output()
        assert job.events("job_stopped")[0]["reason"] == reason
        assert not job.events("worker_failed"), job.describe("its worker's code is no failure")
    assert stopped.job == job.name
    assert stopped.step >= 65
    assert stopped.epoch in (1, 2), "on a busy machine it may be in the third by now"

    with started(scenario.directory, zk_hosts, *script, np=2, max_np=2) as job:
        assert job.end() == 1, job.describe("it overwrote another run's checkpoints")
        assert "has checkpoints of another run" in job.output()
        assert "--resume" in job.output()

    other_size = [*script, "--batch-size", "5"]
    with started(scenario.directory, zk_hosts, *other_size, np=2, max_np=2, options=auto) as job:
        assert job.end() == 0, job.describe("it failed")
        reports = scenario.prove(2, job.describe("the counts are wrong"))
        assert job.events("resumed")[0]["step"] == stopped.step
    for report in reports:
        assert report["rings"][0]["step"] == stopped.step
        assert [epoch["epoch"] for epoch in report["epochs"]] == [*range(stopped.epoch, 3)]


@pytest.mark.long  # the one above resumes, and unit/test_preemption.py has the decisions
def test_a_preempted_job_goes_on_with_one_and_then_with_three(
    scenario: Scenario, zk_hosts: str
) -> None:
    """It is preempted by the verb with 2 workers, and by SIGTERM with 1."""
    script, resume = scenario.script("--num-workers", "1"), ["--resume"]
    with started(scenario.directory, zk_hosts, *script, np=2, max_np=2, throttled=SLOWER) as job:
        job.wait_for_step(20)
        job.edl("preempt", "--within", "2m")
        assert job.end() == HALTED_EXIT, job.describe("it failed")
    first = scenario.newest.step
    assert first >= 20
    bound = [*resume, "--preempt-within", "120"]
    with started(
        scenario.directory, zk_hosts, *script, np=1, max_np=1, options=bound, throttled=SLOWER
    ) as job:
        job.wait_for_step(first + 10)
        (agent,) = [one for one in job.processes() if "--preempt-within" in one.cmdline()]
        agent.terminate()
        assert job.end() == HALTED_EXIT, job.describe("it failed")
        assert f"stopped: SIGTERM in edl run: step {scenario.newest.step}" in job.output()
    second = scenario.newest.step
    assert second >= first + 10
    with started(scenario.directory, zk_hosts, *script, np=3, max_np=3, options=resume) as job:
        assert job.end() == 0, job.describe("it failed")
        reports = scenario.prove(3, job.describe("the counts are wrong"))
    assert {report["rings"][0]["step"] for report in reports} == {second}


@pytest.mark.long  # unit/test_preemption.py
def test_a_step_that_is_longer_than_the_bound(scenario: Scenario, zk_hosts: str) -> None:
    """The workers are killed; the job goes on from the newest checkpoint, which is named."""
    script, slow = scenario.script("--every", "1000"), Throttle(120.0, 1000, 120.0)
    with started(scenario.directory, zk_hosts, *script, np=2, max_np=2, throttled=slow) as job:
        job.wait_for_step(0)
        wait_for_event(job, "checkpoint")
        refused = job.try_edl("preempt", "--within", "soon")
        assert (refused.returncode, refused.stderr) == (
            2,
            "edl: --within soon is no time; write it as 30s, or 2m\n",
        )
        job.edl("preempt", "--within", "3s")
        assert job.end() == HALTED_EXIT, job.describe("step 0 is saved, and no other one was made")
        assert f"step 0 is saved in {scenario.saved}" in job.output()
    with started(
        scenario.directory, zk_hosts, *script, np=1, max_np=1, options=["--resume"]
    ) as job:
        assert job.end() == 0, job.describe("it failed")
        scenario.prove(1, job.describe("the counts are wrong"))


def test_a_damaged_checkpoint_ends_the_job_with_a_sentence(
    scenario: Scenario, zk_hosts: str
) -> None:
    """Once, though each of the workers could have tried it."""
    scenario.saved.mkdir()
    path = files.path_of(scenario.saved, 7)
    path.write_bytes(b"not ours")
    script, resume = scenario.script(), ["--resume"]
    with started(scenario.directory, zk_hosts, *script, np=2, max_np=2, options=resume) as job:
        assert job.end() == 1, job.describe("it should have failed")
        sentence = (
            f"cannot resume: there is no checkpoint in {scenario.saved}; refused: {path} is no"
        )
        assert f"failed: {sentence}" in job.output().replace("\n", " ")
        assert job.output().count("checkpoint_refused") == 1


@pytest.mark.long  # on loopback rings in `make test`
def test_below_min_np_the_job_ends_with_a_checkpoint(scenario: Scenario, zk_hosts: str) -> None:
    """A replacement comes too late: it is started anew."""
    script, options = scenario.script(), ["--elastic-timeout", "0.5", "--no-template"]
    limits: dict[str, Any] = {"np": 2, "min_np": 2, "max_np": 2, "options": options}
    with started(scenario.directory, zk_hosts, *script, **limits, throttled=SLOW) as job:
        job.wait_for_step(10)
        os.kill(min(job.workers(COUNTING)), signal.SIGKILL)
        assert job.end() == 1, job.describe("it should have failed")
        assert "only 1 worker left, min_np is 2, and nobody joined within 0.5 s" in job.output()
        (paused,) = job.events("paused")
        assert paused["reason"].startswith("paused: 1 worker is left and min_np is 2; others are")
    saved = scenario.newest
    assert saved.step >= 10
    with started(
        scenario.directory, zk_hosts, *script, np=1, max_np=1, options=["--resume"]
    ) as job:
        assert job.end() == 0, job.describe("it failed")
        reports = scenario.prove(1, job.describe("the counts are wrong"))
    assert reports[0]["rings"][0]["step"] == saved.step


def test_sigterm_to_everything_saves(scenario: Scenario, zk_hosts: str) -> None:
    """To the loaders' processes, too."""
    script = scenario.script("--num-workers", "1")
    with started(scenario.directory, zk_hosts, *script, np=2, max_np=2, throttled=SLOW) as job:
        job.wait_for_step(5)
        for process in job.processes():
            with contextlib.suppress(psutil.NoSuchProcess):  # a loader's, which ends as others do
                process.terminate()
        assert job.end() == 143, job.describe("it failed")
        assert "Traceback" not in job.output()
    assert scenario.newest.step >= 5


def test_a_job_of_one_needs_no_launcher(scenario: Scenario, zk_hosts: str) -> None:
    job = Job(scenario.directory, zk_hosts)
    job.throttle(SLOW)
    errors_file = scenario.directory / "errors_file"

    def run(resume: str) -> forked.Python:
        with errors_file.open("w") as errors:
            environment = {**job.environment, "EDL_RESUME": resume}
            return forked.Python("torch", scenario.script(), env=environment, stderr=errors)

    first = run("")
    deadline = time.monotonic() + 60
    while not (scenario.saved.exists() and files.checkpoint_files(scenario.saved)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    first.terminate()
    assert first.wait(60) == 143
    saved = scenario.newest
    job.hurry()
    assert run("").wait(60) == 1
    refusal = f"edl: {scenario.saved} has checkpoints of another run (job alone, step {saved.step})"
    assert errors_file.read_text().startswith(refusal)
    assert run("1").wait(60) == 0
    reports = scenario.prove(1, "")
    assert reports[0]["rings"][0]["step"] == saved.step
