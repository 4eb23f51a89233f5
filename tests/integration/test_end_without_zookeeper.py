"""A job is ended while ZooKeeper is away: with its last checkpoint, as at any other time."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from scenario import Scenario, scenario

from edl.checkpoint import format as files
from edl.host.job_end import TOLD
from edl.testing.zookeeper import Server, ensemble

pytestmark = [pytest.mark.integration, pytest.mark.slow]

AWAY = "ZooKeeper is away, so its workers are told directly"


def lose(job: Scenario, server: Server) -> None:
    server.kill()
    job.until(lambda: "ZooKeeper is away" in job.output(), "word of it")


@pytest.mark.long
@pytest.mark.parametrize("how", ["sigterm", "edl stop"])
def test_with_its_last_checkpoint(how: str, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    with (
        ensemble(tmp_path, 1) as (server,),
        scenario(tmp_path, server.hosts, np=2, more=["--checkpoint", str(saved)]) as job,
    ):
        job.wait_for_step(5)
        lose(job, server)
        before = files.checkpoint_files(saved)
        if how == "sigterm":
            job.agent().send_signal(signal.SIGTERM)
        else:
            stopped = job.try_edl("stop")
            assert stopped.returncode == 0, stopped
            assert f"edl run of job {job.name} has ended" in stopped.stdout
        assert job.end() == 128 + signal.SIGTERM, job.describe("it ended otherwise")
        job.until(lambda: not job.processes(), "an end of all processes")
        assert AWAY in job.output()
        assert f"job {job.name} has ended; ZooKeeper is away" in job.output()
        assert len(files.checkpoint_files(saved)) > len(before), job.describe("it was not saved")


def test_on_two_hosts_and_the_records_say_so_later(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    with (
        ensemble(tmp_path, 1) as (server,),
        scenario(tmp_path, server.hosts, np=1, max_np=2, more=["--checkpoint", str(saved)]) as job,
    ):
        job.wait_for_step(5)
        guest = job.join_as("b", np=1)
        job.wait_for_size(2)
        before = job.wait_for_progress()["step"]
        lose(job, server)
        job.agent().send_signal(signal.SIGINT)
        job.until(
            lambda: "so that the other hosts learn that the job has ended" in job.output(),
            "its patience",
        )
        job.until(lambda: not job.workers(job.script), "an end of the workers on both hosts")
        assert files.read_manifest(files.checkpoint_files(saved)[0]).step > before
        job.agent().send_signal(signal.SIGSTOP)  # the other host's is back first
        server.start()
        output = tmp_path / "b.output"
        job.until(lambda: TOLD in output.read_text(), "word of it on the other host")
        job.agent().send_signal(signal.SIGCONT)
        assert job.end() == 128 + signal.SIGINT, job.describe("it ended otherwise")
        assert output.read_text().count(" in slot ") == 1, "nobody is started any more"
        assert guest.wait(60) == 0, (tmp_path / "b.output").read_text()
        assert job.status()["state"] == "stopped"
        assert job.status()["reason"] == "Ctrl-C in edl run"
