"""What the simulated cluster knows of a job and a policy does not: what it really takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from edl.core.cluster.state import Model
from edl.core.policy.step_time import Measured

Observation = tuple[Measured, float | None]
"""A step that a job has made, and the noise scale of its gradients in samples; None: not known."""


class JobWork(Protocol):
    """What a job has to do, and how fast it does it with the slots that it has.

    Progress has any unit; it begins at 0 and the job ends with its last epoch.
    """

    @property
    def epochs(self) -> int:
        """At least 1."""

    def end_of(self, epoch: int) -> float:
        """The progress at which an epoch, counted from 0, ends."""

    def rate(self, slots: tuple[int, ...], batch: int, epoch: int) -> float:
        """Progress a second with so many slots on each node, above 0.

        Raises:
            UsageError: nobody knows: it was not measured.
        """

    def model(self, epoch: int, progress: float) -> Model:
        """What policies are told."""

    def observed(self, slots: tuple[int, ...], batch: int, epoch: int) -> Observation:
        """What the job itself measures while it trains so, without interference, as published."""


@dataclass(frozen=True)
class SubmittedJob:
    """A job as its user submits it; see :class:`edl.core.cluster.state.ClusterJob` for the fields.

    Attributes:
        kind: of job, for tables.
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
