"""The jobs of the benchmark: counting models whose steps wait as long as their curve says.

A step has the same global batch with any number of workers, and waits for a time that depends on
this number only. So one processor can train as if it were many, and the curve of each job is known.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.jobs import ROOT

SCRIPTS = ROOT / "tests" / "integration" / "scripts"
FRAMEWORKS = {"torch": SCRIPTS / "counting.py", "tensorflow": SCRIPTS / "tf_counting.py"}
WAITING = Path(__file__).with_name("waiting.py")
BATCH = 24  # samples of a step: divisible by each number of workers
EPOCHS = 2
MOST = 4  # workers of a job
HOSTS = ("a", "b")
SLOTS = 4  # of each host
CYCLE_MS = 5  # of Horovod: with its own 1 ms, idle workers would keep both processors busy


@dataclass(frozen=True)
class Scaling:
    """How a job scales.

    Attributes:
        name: the words for it in tables.
        speed: by how much faster the job trains with 1, 2, 3 and 4 workers than with one.
    """

    name: str
    speed: tuple[float, ...]


LINEAR, SATURATING = "nearly linear", "saturating"
BEST_AT_2, BEST_AT_3 = "best at 2", "best at 3"


@dataclass(frozen=True)
class WorkloadJob:
    """One job of the workload.

    Attributes:
        name: its name.
        framework: a key of FRAMEWORKS.
        scaling: how it scales.
        step_s: for how long its steps wait with one worker.
        steps: how many it trains; a multiple of EPOCHS.
        arrival_s: when it is submitted, in seconds after the first one.
        np: the slots that its user asks for.
    """

    name: str
    framework: str
    scaling: Scaling
    step_s: float
    steps: int
    arrival_s: float
    np: int

    @property
    def samples(self) -> int:
        """The samples of an epoch."""
        return self.steps // EPOCHS * BATCH

    @property
    def waits(self) -> tuple[float, ...]:
        """For how many seconds a step waits with 1, 2, ... workers."""
        return tuple(round(self.step_s / speed, 4) for speed in self.scaling.speed)

    def command(self, directory: Path, epochs: int = EPOCHS) -> list[str]:
        """Return the command line of a worker; its reports and step logs go into ``directory``."""
        waits, steps = ",".join(map(str, self.waits)), self.steps // EPOCHS * epochs
        return [
            sys.executable,
            str(WAITING),
            *("--waits", waits, "--steps", str(steps), "--log", str(directory / "steps")),
            str(FRAMEWORKS[self.framework]),
            *("--out", str(directory / "reports")),
            *("--samples", str(self.samples), "--epochs", str(epochs)),
            *("--global-batch", str(BATCH)),
            *("--checkpoint", str(directory / "checkpoints")),
        ]

    def manifest(
        self, directory: Path, step_s: Mapping[int, float] | None = None
    ) -> dict[str, Any]:
        """Return the manifest with which the job is submitted.

        Args:
            directory: where its reports, step logs and checkpoints go.
            step_s: its measured step times by number of workers; None: they are not supplied.
        """
        hints: dict[str, Any] = {"steps": self.steps}
        if step_s is not None:
            hints["throughput"] = {str(np): BATCH / each_s for np, each_s in step_s.items()}
        return {
            "name": self.name,
            "command": self.command(directory),
            "cwd": str(directory),
            "min": 1,
            "max": MOST,
            "np": self.np,
            "env": ENVIRONMENT,
            "batch": {"min": BATCH, "max": BATCH},
            "hints": hints,
        }


ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "HOROVOD_CYCLE_TIME": str(CYCLE_MS),
}

# No two jobs scale alike: if several gained as much by a slot, the noise of their measured step
# times would decide which of them gets it.
JOBS = (
    WorkloadJob("j1-torch", "torch", Scaling(LINEAR, (1, 1.98, 2.88, 3.7)), 0.8, 400, 0.0, 4),
    WorkloadJob("j2-tf", "tensorflow", Scaling(SATURATING, (1, 1.6, 2, 2.3)), 0.5, 260, 10.0, 2),
    WorkloadJob("j3-torch", "torch", Scaling(BEST_AT_2, (1, 1.7, 1.4, 1.1)), 0.5, 240, 25.0, 2),
    WorkloadJob("j4-tf", "tensorflow", Scaling(LINEAR, (1, 1.94, 2.72, 3.38)), 0.8, 230, 40.0, 4),
    WorkloadJob("j5-torch", "torch", Scaling(SATURATING, (1, 1.5, 1.85, 2)), 0.5, 220, 55.0, 2),
    WorkloadJob("j6-tf", "tensorflow", Scaling(BEST_AT_3, (1, 1.64, 1.89, 1.6)), 0.5, 200, 75.0, 2),
    WorkloadJob("j7-torch", "torch", Scaling(SATURATING, (1, 1.86, 2.6, 3.06)), 0.8, 100, 95.0, 2),
    WorkloadJob(
        "j8-tf", "tensorflow", Scaling(SATURATING, (1, 1.55, 1.75, 1.85)), 0.5, 180, 120.0, 2
    ),
)


def named(names: Sequence[str] | None) -> tuple[WorkloadJob, ...]:
    """Return the jobs with these names, or all if ``names`` is None."""
    return tuple(job for job in JOBS if names is None or job.name in names)
