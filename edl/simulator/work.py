"""Define the true work of a job, which the simulator knows and a policy does not.

:class:`SubmittedJob` is a job, and :class:`JobWork` the interface of its work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from edl.core.cluster.state import TrainingModel
from edl.core.policy.step_time import StepTimeSample

Observation = tuple[StepTimeSample, float | None]
"""A step that a job has made, and the noise scale of its gradients in samples; None: not known."""


class JobWork(Protocol):
    """The interface of the work that a job has to do, with its true speed by slots and batch.

    Each kind of work has its own unit of progress. Progress begins at 0, goes on through the
    epochs, and the job ends with its last epoch.
    """

    @property
    def epochs(self) -> int:
        """The number of epochs of the job, at least 1."""

    def end_of(self, epoch: int) -> float:
        """Return the progress at which epoch number ``epoch``, counted from 0, ends.

        Progress counts from the begin of the job, in the unit of this kind of work.
        """

    def rate(self, slots: tuple[int, ...], batch: int, epoch: int) -> float:
        """Return the job's progress per second, above 0, in the unit of this kind of work.

        It is the rate without interference by other jobs, on nodes of relative speed 1.

        Args:
            slots: the number of the job's slots on each of its nodes; at least one.
            batch: the global batch, in samples.
            epoch: the epoch that the job is in, counted from 0.

        Raises:
            UsageError: the speed with these slots and this batch was not measured.
        """

    def model(self, epoch: int, progress: float) -> TrainingModel:
        """Return the model by which policies predict the job's step time and remaining steps.

        It is the model at this point of the training; it does not change later.

        Args:
            epoch: the epoch that the job is in, counted from 0.
            progress: the job's progress, in the unit of this kind of work.
        """

    def observed(self, slots: tuple[int, ...], batch: int, epoch: int) -> Observation:
        """Return the step time and the gradient noise scale that the job itself would measure.

        The noise scale is in samples; infinite: the gradients are nothing but noise; None: not
        known. Neither includes interference by other jobs, as in Pollux' simulator.

        Args:
            slots: the number of the job's slots on each of its nodes.
            batch: the global batch, in samples.
            epoch: the epoch that the job is in, counted from 0.

        Raises:
            UsageError: the step time with these slots and this batch was not measured.
        """


@dataclass(frozen=True)
class SubmittedJob:
    """A job as its user submits it, with the work that it really takes.

    Attributes:
        name: the name of the job, unique in a run.
        arrival_s: the time of submission, in seconds.
        work: the work that the job has to do; policies do not see it.
        requested_slots: the number of slots that its user requests; it lies between the two limits.
        min_slots, max_slots: the fewest and the most slots that a policy may give it.
        batch: the global batch that its user requests, in samples.
        batches: the smallest and the largest global batch that a policy may choose.
        preemptible: whether a policy may change its slots. If False, the job keeps the slots that
            it was first given until it ends.
        local_batches: the fewest samples of a step that one slot can train, and the most that it
            can train at once (a larger share is accumulated); None: there is no limit.
        kind: the kind of job (like the name of its application), for tables; may be empty.
        weight: its weight in policies that share slots by weight; above 0.
    """

    name: str
    arrival_s: float
    work: JobWork
    requested_slots: int
    min_slots: int
    max_slots: int
    batch: int = 1
    batches: tuple[int, int] = (1, 1)
    preemptible: bool = True
    local_batches: tuple[int, int] | None = None
    kind: str = ""
    weight: float = 1.0
