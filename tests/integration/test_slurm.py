"""The recipes for Slurm, on a real cluster of three nodes on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from paths import ROOT
from scenario import Scenario, scenario
from slurm import Slurm

from edl.checkpoint import format as files
from edl.testing.job import EDL, MARK
from edl.testing.zookeeper import free_ports

RECIPES = ROOT / "recipes" / "slurm"

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long]


class SlurmScenario(Scenario):
    """A scenario that `sbatch train.sbatch` starts, as the first job of a cluster."""

    slurm: Slurm
    samples = 1920  # it waits in queues, too
    number = 0  # of Slurm's job that trains

    def run(
        self,
        script: Path,
        *arguments: str,
        np: int,
        min_np: int = 1,
        max_np: int,
        options: Sequence[str] = (),
    ) -> None:
        """On ``np`` nodes; its own ZooKeeper is on the first of them."""
        self.number = self.number + 1 if self.number else self.slurm.first_job
        self.name = f"edl-{self.number}"
        port = free_ports(1)[0]
        self.checkpoints = self.directory / "checkpoints"
        self.run_directory = self.directory / "run"
        self.there = ("env",)  # `edl status` watches: it alone knows where the secret is
        self.environment |= {
            **self.slurm.environment,
            MARK: self.name,
            "PATH": f"{EDL.parent}:{os.environ['PATH']}",
            "EDL_ZOOKEEPER": f"127.0.0.1:{port}",
            "ADDRESS": "127.0.0.1",
            "PORT": str(port),
            "MIN_NP": str(min_np),
            "MAX_NP": str(max_np),
            "RUN": str(self.run_directory),
        }
        sbatch = ["sbatch", "--wait", f"--nodes={np}", "--output=slurm-%j.out", *options]
        train = [RECIPES / "train.sbatch", sys.executable, script, *arguments]
        kept = ["--checkpoint", self.checkpoints, "--every", "2"]
        self._begin(["env", "-u", "EDL_ZOOKEEPER", *sbatch, *train, *kept])

    def cancelled(self) -> None:
        """Wait for the end of `sbatch --wait`, and of what `edl status` shows."""
        assert self.end() != 0
        self._stop_watching()

    def join(self) -> None:
        """One more node, as the next of Slurm's jobs."""
        self.slurm.run(
            "sbatch",
            f"--output={self.directory}/slurm-%j.out",
            RECIPES / "join.sbatch",
            self.run_directory,
            environment=self.environment,
        )

    def resumed(self) -> list[dict[str, Any]]:
        self.wait_for_size(2)
        return self.events("resumed")

    def farewells(self) -> int:
        return self.output().count(f"host n3 has left job {self.name}")

    def output(self) -> str:
        logs = sorted(self.directory.glob("slurm-*.out"))
        return super().output() + "".join(log.read_text(errors="replace") for log in logs)


def test_nodes_join_and_leave_and_a_requeued_job_continues(tmp_path: Path) -> None:
    with (
        Slurm(tmp_path / "slurm", ("n1", "n2", "n3")) as slurm,
        scenario(tmp_path, "", np=2, max_np=4, kind=SlurmScenario, slurm=slurm) as job,
    ):
        now = job.wait_for_size(2)
        assert sorted(now["hosts"]) == ["n1", "n2"]
        job.join()
        assert sorted(job.wait_for_size(3)["hosts"]) == ["n1", "n2", "n3"]
        # A notice for the node that joined: it leaves, waits in the queue, and comes back.
        slurm.run("scancel", "--batch", "--signal=USR1", str(job.number + 1))
        job.wait_for_size(2)
        job.until(lambda: job.farewells() == 1, "a farewell")
        job.wait_for_size(3)
        # Cancelled without a notice, all its processes get SIGTERM, and some time.
        slurm.run("scancel", str(job.number + 1))
        job.wait_for_size(2)
        job.until(lambda: job.farewells() == 2, "another farewell")
        # The same for the job itself, as before its time limit.
        before = job.wait_for_progress()
        slurm.run("scancel", "--batch", "--signal=USR1", str(job.number))
        job.until(lambda: f"job {job.name} stopped" in job.output(), "the stop")
        job.until(lambda: job.output().count(f"job {job.name} starts with") == 2, "another start")
        job.look_again()
        after = job.wait_for_size(2)
        assert after["step"] >= before["step"]
        assert job.resumed()
        job.prove(workers=2)
        assert slurm.state(job.number) == "COMPLETED"


def test_a_job_that_lost_a_node_and_was_cancelled_is_submitted_again(tmp_path: Path) -> None:
    with (
        Slurm(tmp_path / "slurm", ("n1", "n2", "n3")) as slurm,
        scenario(tmp_path, "", np=3, max_np=4, kind=SlurmScenario, slurm=slurm) as job,
    ):
        job.wait_for_size(3)
        for process in job.processes():
            with suppress(psutil.NoSuchProcess):  # it has followed another of its node
                if process.environ().get("EDL_HOST") == "n3":
                    process.kill()
        job.wait_for_size(2)
        job.wait_for_progress()
        assert slurm.state(job.number) == "RUNNING"
        slurm.run("scancel", str(job.number))
        job.cancelled()
        assert slurm.state(job.number) == "CANCELLED"
        newest = files.read_manifest(files.checkpoint_files(job.checkpoints)[0])
        job.run(job.script, *job.words(), np=2, max_np=4)
        (resumed,) = job.resumed()
        assert resumed["step"] == newest.step
        job.prove(workers=2)
        assert slurm.state(job.number) == "COMPLETED"


def test_a_job_that_is_asked_to_end_has_succeeded_with_a_checkpoint(tmp_path: Path) -> None:
    with (
        Slurm(tmp_path / "slurm", ("n1", "n2")) as slurm,
        scenario(tmp_path, "", np=2, max_np=4, kind=SlurmScenario, slurm=slurm) as job,
    ):
        job.wait_for_size(2)
        before = job.wait_for_progress()
        slurm.run("scancel", "--batch", "--signal=TERM", str(job.number))
        assert job.end() == 0, job.describe("sbatch --wait says that it failed")
        assert slurm.state(job.number) == "COMPLETED"
        newest = files.read_manifest(files.checkpoint_files(job.checkpoints)[0])
        assert newest.step >= before["step"]
