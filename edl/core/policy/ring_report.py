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
    """A summary of the step records of one ring's last steps, for the job's policy.

    Each worker makes the same one every 10 steps; the leader, which runs in a worker, reads its
    own. :data:`NO_REPORT` is the empty one.

    Attributes:
        care: the measures against slow workers: smaller batches, or replacement.
        times: the mean step times of each worker, in rank order.
        size_changes: for each worker, in rank order, how many workers more (or fewer, below 0) its
            script asks for; 0: it asks for no change.
        is_timed: whether the workers' step times are known, because the script trains with edl's
            loaders.
        noise: the gradient noise scale as far as it was measured; before that, an unknown one.
        batching: the sizes of the batches; None: unknown.
        step_batches: the number of batches whose gradients a worker adds up for one step.
        learning: new samples of the loss and the learning rate, the oldest first.
        generation: the number of the generation whose step records have the ``size_changes``.
    """

    care: Mitigation = NO_MITIGATION
    times: tuple[Times, ...] = ()
    size_changes: tuple[int, ...] = ()
    is_timed: bool = True
    noise: NoiseScale = UNKNOWN
    batching: Batching | None = None
    step_batches: int = 1
    learning: tuple[LearningSample, ...] = ()
    generation: int = 0


NO_REPORT = RingReport()
