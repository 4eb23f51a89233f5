"""Define the summary of a ring's last steps, from which the leader follows the job's policy."""

from __future__ import annotations

from dataclasses import dataclass

from edl.core.learning_meter import LearningSample
from edl.core.policy.stragglers import NO_MITIGATION, Mitigation, Times
from edl.step.batching import Batching
from edl.step.noise import UNKNOWN, NoiseScale


@dataclass(frozen=True)
class RingReport:
    """A summary of a ring's last step records; each worker makes the same one every 10 steps."""

    care: Mitigation = NO_MITIGATION
    times: tuple[Times, ...] = ()  # by rank
    size_changes: tuple[int, ...] = ()  # by rank: how many workers more a script asks for
    is_timed: bool = True  # step times are known, because the script trains with edl's loaders
    noise: NoiseScale = UNKNOWN
    batching: Batching | None = None  # None: unknown
    step_batches: int = 1  # batches whose gradients a worker adds up for one step
    learning: tuple[LearningSample, ...] = ()  # new ones, the oldest first
    generation: int = 0  # whose step records have the `size_changes`


NO_REPORT = RingReport()
