"""What a job trains with other numbers of workers, by the model of its step time.

A model is never exact. Of a size that was measured the measurement counts, and what the model is
wrong by there it is wrong by in the sizes beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from edl.core.policy.observation import Seen
from edl.core.policy.step_time import Measured, StepTime

ENOUGH_STEPS = 10  # for a measurement to count more than the model


@dataclass(frozen=True)
class Scaling:
    """A :class:`edl.core.policy.observation.Model`.

    Attributes:
        batch: samples of one worker in a step.
        slots: of the hosts, in the order in which they are filled; empty: there is one host.
        seen: what was measured.
    """

    step_time: StepTime
    batch: float
    slots: Sequence[int] = ()
    seen: Mapping[int, Seen] = field(default_factory=dict)

    def throughput(self, np: int) -> float:
        """Samples a second of ``np`` workers together."""
        known = [n for n, one in self.seen.items() if one.steps >= ENOUGH_STEPS]
        nearest = min(known, key=lambda n: abs(n - np), default=None)
        if nearest is None:
            return self._modelled(np)
        wrong = self.seen[nearest].samples_per_s / self._modelled(nearest)
        return self._modelled(np) * wrong

    def _modelled(self, np: int) -> float:
        return self.step_time.throughput(np, self._hosts(np), self.batch)

    def _hosts(self, np: int) -> int:
        """How many hosts they take."""
        room = 0
        for count, slots in enumerate(self.slots, 1):
            room += slots
            if room >= np:
                return count
        return max(1, len(self.slots))


def measured(seen: Mapping[int, Seen]) -> list[Measured]:
    """The step times that the throughputs mean, of those whose batches are known."""
    return [
        Measured(np, one.hosts, one.batch, np * one.batch / one.samples_per_s)
        for np, one in seen.items()
        if one.batch > 0 and one.samples_per_s > 0
    ]
