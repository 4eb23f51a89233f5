"""Predict the throughput of a job with other numbers of workers, by the model of its step time.

For a size that was measured, the result is the measurement. For other sizes it is the model's
result, corrected by the model's error at the nearest measured size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from edl.core.policy.observation import SizeMeasurement
from edl.core.policy.step_time import StepTime, StepTimeSample

ENOUGH_STEPS = 10  # for a measurement to count more than the model


@dataclass(frozen=True)
class ScalingModel:
    """A model of a job's throughput, by the step time and by measured throughputs.

    It is a :class:`edl.core.policy.observation.ThroughputModel`.

    Attributes:
        step_time: the fitted model of a step's time.
        batch: the samples of one worker in a step.
        slots: the slots of each host, in the order in which hosts are filled; empty: there is one
            host.
        seen: the measured throughput by number of workers.
    """

    step_time: StepTime
    batch: float
    slots: Sequence[int] = ()
    seen: Mapping[int, SizeMeasurement] = field(default_factory=dict)

    def throughput(self, np: int) -> float:
        """Return the throughput of ``np`` workers together, with ``batch`` samples each.

        The throughput is in samples a second.
        """
        return self.with_batches(np, [self.batch])[0]

    def with_batches(self, np: int, batches: Sequence[float]) -> Sequence[float]:
        """Return the throughput of ``np`` workers together, for each of ``batches`` in order.

        A throughput is in samples a second, a batch in samples of one worker.
        """
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
        """Return the number of hosts that ``np`` workers occupy, filling hosts in order."""
        room = 0
        for count, slots in enumerate(self.slots, 1):
            room += slots
            if room >= np:
                return count
        return max(1, len(self.slots))


def step_time_samples(seen: Iterable[tuple[int, SizeMeasurement]]) -> list[StepTimeSample]:
    """Return the step times that follow from measured throughputs, for fitting a model.

    Args:
        seen: pairs of a number of workers and its throughput; pairs without a known batch or
            throughput are left out.
    """
    return [
        StepTimeSample(np, one.hosts, one.batch, np * one.batch / one.samples_per_s)
        for np, one in seen
        if one.batch > 0 and one.samples_per_s > 0
    ]
