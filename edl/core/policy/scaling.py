"""Predict the throughput of a job with other numbers of workers, by the model of its step time.

:class:`ScalingModel` predicts. Its result is that of the step-time model, multiplied by the ratio
of measured to modelled throughput at the nearest measured size. So for a measured size and its
batch the result is the measurement. :func:`step_time_samples` prepares measurements for fitting a
step-time model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from edl.core.policy.observation import SizeMeasurement
from edl.core.policy.step_time import StepTime, StepTimeSample

ENOUGH_STEPS = 10  # for a measurement to count more than the model


@dataclass(frozen=True)
class ScalingModel:
    """A model of a job's throughput, by the step time and by measured throughputs."""

    step_time: StepTime
    batch: float  # samples of one worker in a step
    slots: Sequence[int] = ()  # of the hosts, in the order in which they are filled; empty: one
    seen: Mapping[int, SizeMeasurement] = field(default_factory=dict)  # by number of workers

    def throughput(self, np: int) -> float:
        return self.with_batches(np, [self.batch])[0]

    def with_batches(self, np: int, batches: Sequence[float]) -> Sequence[float]:
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
        """Return the number of hosts that `np` workers occupy, filling hosts in order."""
        room = 0
        for count, slots in enumerate(self.slots, 1):
            room += slots
            if room >= np:
                return count
        return max(1, len(self.slots))


def step_time_samples(seen: Iterable[tuple[int, SizeMeasurement]]) -> list[StepTimeSample]:
    """Return the step times that follow from measured throughputs, for fitting a model."""
    return [
        StepTimeSample(np, one.hosts, one.batch, np * one.batch / one.samples_per_s)
        for np, one in seen
        if one.batch > 0 and one.samples_per_s > 0
    ]
