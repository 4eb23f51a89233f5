"""What the workers of a ring tell each other in their step records, as a policy needs it."""

from __future__ import annotations

from dataclasses import dataclass

from edl.core.policy.stragglers import NO_CARE, Care, Times
from edl.core.step.batching import Batching
from edl.core.step.noise_scale import UNKNOWN, NoiseScale


@dataclass(frozen=True)
class RingReport:
    """Of the last steps of one ring.

    Attributes:
        care: what is to be done about slow workers.
        times: what each worker did.
        wishes: workers more, or fewer, that the script of each wants.
        is_timed: the script trains with edl's loaders, so the workers' times are known.
        noise: what is known of the gradient noise scale.
        batching: how large the batches are; None: nobody knows.
        step_batches: of so many, gradients are added up for one step.
    """

    care: Care = NO_CARE
    times: tuple[Times, ...] = ()
    size_changes: tuple[int, ...] = ()
    is_timed: bool = True
    noise: NoiseScale = UNKNOWN
    batching: Batching | None = None
    step_batches: int = 1


NO_REPORT = RingReport()
