"""Define the summary of a ring's step records that a job's policy reads."""

from __future__ import annotations

from dataclasses import dataclass

from edl.core.policy.stragglers import NO_MITIGATION, Mitigation, Times
from edl.core.step.batching import Batching
from edl.core.step.noise_scale import UNKNOWN, NoiseScale


@dataclass(frozen=True)
class RingReport:
    """A summary of the step records of one ring's last steps, for the job's policy.

    Attributes:
        care: the measures against slow workers: smaller batches, or replacement.
        times: the step times of each worker.
        size_changes: for each worker, how many workers more, or fewer, its script asks for.
        is_timed: whether the script trains with edl's loaders, so that the workers' times are
            known.
        noise: the measurements of the gradient noise scale; none before the first one.
        batching: how large the batches are; None: unknown.
        step_batches: the number of batches whose gradients are added up for one step.
    """

    care: Mitigation = NO_MITIGATION
    times: tuple[Times, ...] = ()
    size_changes: tuple[int, ...] = ()
    is_timed: bool = True
    noise: NoiseScale = UNKNOWN
    batching: Batching | None = None
    step_batches: int = 1


NO_REPORT = RingReport()
