"""Define the summary of a ring's last steps, from which the leader follows the job's policy.

It is :class:`RingReport`.
"""

from __future__ import annotations

from dataclasses import dataclass

from edl.core.learning_meter import LearningSample
from edl.core.policy.stragglers import NO_MITIGATION, Mitigation, Times
from edl.core.step.batching import Batching
from edl.core.step.noise_scale import UNKNOWN, NoiseScale


@dataclass(frozen=True)
class RingReport:
    """A summary of the step records of one ring's last steps, for the job's policy."""

    # the measures against slow workers: smaller batches, or replacement
    care: Mitigation = NO_MITIGATION
    times: tuple[Times, ...] = ()  # the mean step times of each worker, in rank order
    # for each worker, in rank order, how many workers more (or fewer, below 0) its script asks for;
    # 0: it asks for no change
    size_changes: tuple[int, ...] = ()
    # whether the workers' step times are known, because the script trains with edl's loaders
    is_timed: bool = True
    # the gradient noise scale as far as it was measured; before that, an unknown one
    noise: NoiseScale = UNKNOWN
    batching: Batching | None = None  # the sizes of the batches; None: unknown
    step_batches: int = 1  # the number of batches whose gradients a worker adds up for one step
    # new samples of the loss and the learning rate, the oldest first
    learning: tuple[LearningSample, ...] = ()
    generation: int = 0  # the number of the generation whose step records have the `size_changes`


NO_REPORT = RingReport()
