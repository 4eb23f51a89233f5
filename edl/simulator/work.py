"""Define the true work of a job, which the simulator knows and a policy does not.

:class:`SubmittedJob` is a job, and :class:`JobWork` the interface of its work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from edl.cluster.state import TrainingModel
from edl.core.policy.step_time import StepTimeSample

Observation = tuple[StepTimeSample, float | None]
"""A step that a job has made, and the noise scale of its gradients in samples; None: not known."""


class JobWork(Protocol):
    """The interface of the work that a job has to do, with its true speed by slots and batch."""

    @property
    def epochs(self) -> int:
        """The number of epochs of the job, at least 1."""

    def end_of(self, epoch: int) -> float:
        """Return the progress at which epoch number `epoch`, counted from 0, ends."""

    def rate(self, slots: tuple[int, ...], batch: int, epoch: int) -> float:
        """Return the progress per second, without interference, on nodes of relative speed 1."""

    def model(self, epoch: int, progress: float) -> TrainingModel:
        """Return the model by which policies predict the job's step time and remaining steps."""

    def observed(self, slots: tuple[int, ...], batch: int, epoch: int) -> Observation:
        """Return the step time and the gradient noise scale that the job itself would measure."""


@dataclass(frozen=True)
class SubmittedJob:
    """A job as its user submits it, with the work that it really takes."""

    name: str  # the name of the job, unique in a run
    arrival_s: float  # the time of submission, in seconds
    work: JobWork  # the work that the job has to do; policies do not see it
    # the number of slots that its user requests; it lies between the two limits
    requested_slots: int
    min_slots: int  # the fewest and the most slots that a policy may give it
    max_slots: int
    batch: int = 1  # the global batch that its user requests, in samples
    # the smallest and the largest global batch that a policy may choose
    batches: tuple[int, int] = (1, 1)
    # whether a policy may change its slots. If False, the job keeps the slots that it was first
    # given until it ends.
    preemptible: bool = True
    # the fewest samples of a step that one slot can train, and the most that it can train at once
    # (a larger share is accumulated); None: there is no limit
    local_batches: tuple[int, int] | None = None
    kind: str = ""  # the kind of job (like the name of its application), for tables; may be empty
    weight: float = 1.0  # its weight in policies that share slots by weight; above 0
