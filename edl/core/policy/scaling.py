"""What a job trains with other numbers of workers, by the model of its step time.

A model is never exact. Of a size that was measured the measurement counts, and what the model is
wrong by there it is wrong by in the sizes beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
        """Samples a second of ``np`` workers together, with batches as they are now."""
        return self.with_batches(np, [self.batch])[0]

    def with_batches(self, np: int, batches: Sequence[float]) -> Sequence[float]:
        """The same with each of these ``batches``, in samples of one worker."""
        modelled = self.step_time.throughputs(np, self._hosts(np), batches)
        known = [n for n, one in self.seen.items() if one.steps >= ENOUGH_STEPS]
        nearest = min(known, key=lambda n: abs(n - np), default=None)
        if nearest is None:
            return modelled
        seen = self.seen[nearest]
        batch = seen.batch or self.batch
        (there,) = self.step_time.throughputs(nearest, self._hosts(nearest), [batch])
        return [rate * seen.samples_per_s / there for rate in modelled]

    def _hosts(self, np: int) -> int:
        """How many hosts they take."""
        room = 0
        for count, slots in enumerate(self.slots, 1):
            room += slots
            if room >= np:
                return count
        return max(1, len(self.slots))


def measured(seen: Iterable[tuple[int, Seen]]) -> list[Measured]:
    """The step times that throughputs by workers mean, of those whose batches are known."""
    return [
        Measured(np, one.hosts, one.batch, np * one.batch / one.samples_per_s)
        for np, one in seen
        if one.batch > 0 and one.samples_per_s > 0
    ]
