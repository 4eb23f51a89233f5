"""The recipes for Slurm, on a real cluster of three nodes on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from jobs import EDL, ROOT
from slurm import Slurm
from trial import Trial, trial
from zoo import _free_ports

RECIPES = ROOT / "recipes" / "slurm"

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long]


class SlurmTrial(Trial):
    """A trial that `sbatch train.sbatch` starts, as the first job of a cluster."""

    slurm: Slurm
    samples = 1920  # it waits in queues, too

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
        self.name = "edl-1"
        port = _free_ports(1)[0]
        self.checkpoints = self.directory / "checkpoints"
        self.run_directory = self.directory / "run"
        self.environment |= {
            **self.slurm.environment,
            "PATH": f"{EDL.parent}:{os.environ['PATH']}",
            "EDL_ZOOKEEPER": f"127.0.0.1:{port}",
            "ADDRESS": "127.0.0.1",
            "PORT": str(port),
            "MIN_NP": str(min_np),
            "MAX_NP": str(max_np),
            "CHECKPOINTS": str(self.checkpoints),
            "RUN": str(self.run_directory),
        }
        sbatch = ["sbatch", "--wait", f"--nodes={np}", "--output=slurm-%j.out", *options]
        train = [RECIPES / "train.sbatch", sys.executable, script, *arguments]
        kept = ["--checkpoint", self.checkpoints, "--every", "2"]
        self._begin(["env", "-u", "EDL_ZOOKEEPER", *sbatch, *train, *kept])

    def join(self) -> None:
        """One more node, as job 2."""
        self.slurm.run(
            "sbatch",
            f"--output={self.directory}/slurm-%j.out",
            RECIPES / "join.sbatch",
            self.run_directory,
            environment=self.environment,
        )

    def farewells(self) -> int:
        return self.output().count("host n3 has left job edl-1")

    def output(self) -> str:
        logs = sorted(self.directory.glob("slurm-*.out"))
        return super().output() + "".join(log.read_text(errors="replace") for log in logs)


def test_nodes_join_and_leave_and_a_requeued_job_continues(tmp_path: Path) -> None:
    with (
        Slurm(tmp_path / "slurm", ("n1", "n2", "n3")) as slurm,
        trial(tmp_path, "", np=2, max_np=4, kind=SlurmTrial, slurm=slurm) as job,
    ):
        now = job.wait_for_size(2)
        assert sorted(now["hosts"]) == ["n1", "n2"]
        job.join()
        assert sorted(job.wait_for_size(3)["hosts"]) == ["n1", "n2", "n3"]
        # A notice for the node that joined: it leaves, waits in the queue, and comes back.
        slurm.run("scancel", "--batch", "--signal=USR1", "2")
        job.wait_for_size(2)
        job.until(lambda: job.farewells() == 1, "a farewell")
        job.wait_for_size(3)
        # Cancelled without a notice, all its processes get SIGTERM, and some time.
        slurm.run("scancel", "2")
        job.wait_for_size(2)
        job.until(lambda: job.farewells() == 2, "another farewell")
        # The same for the job itself, as before its time limit.
        before = job.wait_for_progress()
        slurm.run("scancel", "--batch", "--signal=USR1", "1")
        job.until(lambda: "job edl-1 stopped" in job.output(), "the stop")
        job.until(lambda: job.output().count("job edl-1 starts with") == 2, "another start")
        after = job.wait_for_size(2)
        assert after["step"] >= before["step"]
        assert job.events("resumed")
        job.prove(workers=2)
        assert slurm.state(1) == "COMPLETED"
