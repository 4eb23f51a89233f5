"""Jobs of a known duration: Amdahl's law says how fast such a job is with other slots."""

from __future__ import annotations

from dataclasses import dataclass

from edl.core.policy.step_time import Measured
from edl.simulator.work import Observation


@dataclass(frozen=True)
class TimedWork:
    """Work that takes a known time with some number of slots; progress is a part of it, 0 to 1."""

    duration_s: float
    slots: int
    parallel_fraction: float = 1.0

    @property
    def epochs(self) -> int:
        """See :class:`edl.simulator.work.Work`."""
        return 1

    def end_of(self, epoch: int) -> float:
        """See :class:`edl.simulator.work.Work`."""
        return 1.0

    def rate(self, slots: tuple[int, ...], batch: int, epoch: int) -> float:
        """See :class:`edl.simulator.work.Work`: by Amdahl's law, wherever the slots are."""
        return 1 / self.whole_s(sum(slots))

    def model(self, epoch: int, progress: float) -> TimedModel:
        """See :class:`edl.simulator.work.Work`."""
        return TimedModel(self, 1 - progress)

    def observed(self, slots: tuple[int, ...], batch: int, epoch: int) -> Observation:
        """See :class:`edl.simulator.work.Work`: it computes all the time, a share of the batch."""
        whole_s = self.whole_s(sum(slots))
        return Measured(sum(slots), len(slots), batch / sum(slots), whole_s, whole_s), None

    def whole_s(self, slots: int) -> float:
        """Seconds for all of it."""
        return self.duration_s * self._time(slots) / self._time(self.slots)

    def _time(self, slots: int) -> float:
        return 1 - self.parallel_fraction + self.parallel_fraction / slots


@dataclass(frozen=True)
class TimedModel:
    """What policies are told of such work: the truth, all of it being one step."""

    work: TimedWork
    left: float

    def step_s(self, slots: tuple[int, ...], batch: int) -> float:
        """See :class:`edl.core.cluster.state.Model`."""
        return self.work.whole_s(sum(slots))

    def efficiency(self, batch: int) -> float:
        """See :class:`edl.core.cluster.state.Model`."""
        return 1.0

    def steps_left(self, batch: int) -> float:
        """See :class:`edl.core.cluster.state.Model`."""
        return self.left
