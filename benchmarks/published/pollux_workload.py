"""Make the jobs of Pollux' published workloads, of six applications: :func:`pollux_jobs`.

Each load has eight workloads of 8 hours of submissions. Load 1.0 is 160 jobs; load 0.5 is half as
many, and so on. Their slots and batches are tuned; load "realistic" has other ones. The workloads
ran on 16 nodes of 4 slots.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.published.application import Application, interpolator
from benchmarks.published.pollux_measurements import measured_applications, pollux_rows
from edl.cluster.state import EXACT, StepTimeError
from edl.errors import UsageError
from edl.simulator.costs import constant
from edl.simulator.workload import Observation, SubmittedJob

LOADS = ("0.5", "1.0", "1.5", "2.0", "realistic")
WORKLOADS = tuple(range(1, 9))
NODES = 16
SLOTS = 4  # the most of a node: no larger node was measured
MOST_SLOTS = 64  # the most of a job: no more were measured
INTERVAL_S = 60.0
RESIZE = constant(30.0)
# Jobs of this application are too short to be scaled or tuned: as published, elastic policies give
# them one slot, and the batch that the user requested.
UNTUNED = "ncf"


@dataclass(frozen=True)
class Oracle:
    """The model of a job's training that policies get: its times and efficiencies as measured."""

    application: Application  # the measured application that the job trains
    epoch: int  # the number of the epoch that the job is in, from 0

    @property
    def error(self) -> StepTimeError:
        """No error: the times are the true ones."""
        return EXACT

    def step_s(self, slots: tuple[int, ...], batch: int) -> float:
        """Return the seconds of a step, as the published oracle of Optimus has them."""
        return self.application.predicted_step_s(slots, batch)

    def efficiency(self, batch: int) -> float:
        """Return the measured statistical efficiency of the global batch `batch` in this epoch."""
        return self.application.gain(batch, self.epoch) * self.application.batches[0] / batch

    def steps_left(self, batch: int) -> float:
        """Return the steps of `batch` samples in all epochs after this one; 1 in the last epoch."""
        last = self.application.epochs - 1
        if self.epoch >= last:
            return 1.0
        steps = self.application.steps_at
        return steps(batch, last) - steps(batch, self.epoch)


@dataclass(frozen=True)
class ApplicationWork:
    """The work of a job of a measured application; progress is in steps of the initial batch."""

    application: Application  # the measured application that the job trains

    @property
    def epochs(self) -> int:
        """The number of epochs after which the application is trained."""
        return self.application.epochs

    def end_of(self, epoch: int) -> float:
        """Return the progress at which an epoch ends, in steps of the initial batch."""
        return self.application.end_of(epoch)

    def rate(self, slots: tuple[int, ...], batch: int, epoch: int) -> float:
        """Return the measured progress a second in an epoch, in steps of the initial batch."""
        return self.application.rate(slots, batch, epoch)

    def model(self, epoch: int, progress: float) -> Oracle:
        """Return the model that policies get of the job in epoch `epoch`, counted from 0."""
        return Oracle(self.application, epoch)

    def observed(self, slots: tuple[int, ...], batch: int, epoch: int) -> Observation:
        """Return the step time and the gradient noise scale that the job would measure."""
        return self.application.observed(slots, batch, epoch)


def application_job(
    name: str, arrival_s: float, application: Application, slots: int, batch: int
) -> SubmittedJob:
    """Return a job of a measured application, with the limits of that application."""
    batches = application.batches
    most = min(batches[1] // application.min_local_batch, MOST_SLOTS)
    if application.name == UNTUNED:
        batches, most = (batch, batch), 1
    return SubmittedJob(
        name=name,
        arrival_s=arrival_s,
        work=ApplicationWork(application),
        requested_slots=slots,
        min_slots=1,
        max_slots=max(slots, most),
        batch=batch,
        batches=batches,
        local_batches=(application.min_local_batch, application.max_local_batch),
        kind=application.name,
    )


def pollux_jobs(load: str, workload: int) -> list[SubmittedJob]:
    """Return the jobs of one published workload, in the order of submission."""
    known = measured_applications()
    return [
        application_job(
            row["name"],
            float(row["time_s"]),
            known[row["application"]],
            int(row["num_replicas"]),
            int(row["batch_size"]),
        )
        for row in pollux_rows("jobs")
        if row["load"] == load and int(row["workload"]) == workload
    ]


def check_measured(slots: int) -> None:
    """Raise an error if the measurements cannot be used with nodes of `slots` slots."""
    if slots > SLOTS:
        raise UsageError(
            f"the published measurements have nodes of 1 to {SLOTS} slots, not of {slots}"
        )
    interpolator()
