"""The published workloads of Pollux: jobs of six applications, as their users tuned them.

Each load has eight workloads of 8 hours of submissions; load 1.0 is 160 jobs, the others are so
many times as many, "realistic" has other sizes and batches. They ran on 16 nodes of 4 slots.
"""

from __future__ import annotations

from dataclasses import dataclass

from edl.errors import UsageError
from edl.simulator.published.workloads.application import Application, interpolator
from edl.simulator.published.workloads.pollux_measurements import measured_applications, pollux_rows
from edl.simulator.resize import constant
from edl.simulator.work import Observation, SubmittedJob

LOADS = ("0.5", "1.0", "1.5", "2.0", "realistic")
WORKLOADS = tuple(range(1, 9))
NODES = 16
SLOTS = 4  # of a node, at most: no larger one was measured
MOST_SLOTS = 64  # of a job: no more were measured
INTERVAL_S = 60.0
RESIZE = constant(30.0)
# Too short to be scaled or tuned: elastic policies give it one slot, and the batch that its user
# requested, as published.
UNTUNED = "ncf"


@dataclass(frozen=True)
class Oracle:
    """What policies are told of a job: the measurements themselves, and the epoch that it is in."""

    application: Application
    epoch: int

    def step_s(self, slots: tuple[int, ...], batch: int) -> float:
        """See :class:`edl.core.cluster.state.Model`."""
        return self.application.predicted_step_s(slots, batch)

    def efficiency(self, batch: int) -> float:
        """See :class:`edl.core.cluster.state.Model`."""
        return self.application.gain(batch, self.epoch) * self.application.batches[0] / batch

    def steps_left(self, batch: int) -> float:
        """Those of whole epochs from the next one on, 1 in the last: as published for Optimus."""
        last = self.application.epochs - 1
        if self.epoch >= last:
            return 1.0
        steps = self.application.steps_at
        return steps(batch, last) - steps(batch, self.epoch)


@dataclass(frozen=True)
class ApplicationWork:
    """The work of a job of one application."""

    application: Application

    @property
    def epochs(self) -> int:
        """See :class:`edl.simulator.work.JobWork`."""
        return self.application.epochs

    def end_of(self, epoch: int) -> float:
        """See :class:`edl.simulator.work.JobWork`: in steps of the initial batch."""
        return self.application.end_of(epoch)

    def rate(self, slots: tuple[int, ...], batch: int, epoch: int) -> float:
        """See :class:`edl.simulator.work.JobWork`."""
        return self.application.rate(slots, batch, epoch)

    def model(self, epoch: int, progress: float) -> Oracle:
        """See :class:`edl.simulator.work.JobWork`."""
        return Oracle(self.application, epoch)

    def observed(self, slots: tuple[int, ...], batch: int, epoch: int) -> Observation:
        """See :class:`edl.simulator.work.JobWork`."""
        return self.application.observed(slots, batch, epoch)


def application_job(
    name: str, arrival_s: float, application: Application, slots: int, batch: int
) -> SubmittedJob:
    """A job of a measured application, with the limits that it has there."""
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
    """The jobs of one workload, in the order of their submission.

    Args:
        load: one of LOADS.
        workload: one of WORKLOADS.
    """
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
    """Refuse what was not measured, before anything runs.

    Args:
        slots: of a node.

    Raises:
        UsageError: nodes are larger than those measured, or scipy is missing.
    """
    if slots > SLOTS:
        raise UsageError(
            f"the published measurements have nodes of 1 to {SLOTS} slots, not of {slots}"
        )
    interpolator()
