"""Define jobs of a known duration, whose speed with other slots follows Amdahl's law."""

from __future__ import annotations

from dataclasses import dataclass

from edl.core.policy.step_time import StepTimeSample
from edl.simulator.work import Observation


@dataclass(frozen=True)
class TimedWork:
    """The work of a job that takes a known time with a certain number of slots.

    Its progress is the fraction of the work that is done, 0 to 1, in a single epoch.

    Attributes:
        duration_s: the seconds that the work takes with ``slots`` slots.
        parallel_fraction: the fraction of the work that more slots share, 0 to 1.
    """

    duration_s: float
    slots: int
    parallel_fraction: float = 1.0

    @property
    def epochs(self) -> int:
        """The number of epochs, which is 1."""
        return 1

    def end_of(self, epoch: int) -> float:
        """Return 1, the progress at the end of the only epoch."""
        return 1.0

    def rate(self, slots: tuple[int, ...], batch: int, epoch: int) -> float:
        """Return the progress a second on ``slots`` by Amdahl's law.

        Only the total number of slots counts, not their nodes, nor the batch.
        """
        return 1 / self.whole_s(sum(slots))

    def model(self, epoch: int, progress: float) -> TimedModel:
        """Return the model that policies get of the job after ``progress``: it tells the truth."""
        return TimedModel(self, 1 - progress)

    def observed(self, slots: tuple[int, ...], batch: int, epoch: int) -> Observation:
        """Return the step time that the job would measure, as one step of the whole work.

        All of the step is computing, and each slot has an equal share of ``batch``. The noise scale
        is None: not known.
        """
        whole_s = self.whole_s(sum(slots))
        return StepTimeSample(sum(slots), len(slots), batch / sum(slots), whole_s, whole_s), None

    def whole_s(self, slots: int) -> float:
        """Return the seconds that the whole work takes with ``slots`` slots."""
        return self.duration_s * self._time(slots) / self._time(self.slots)

    def _time(self, slots: int) -> float:
        """Return the time of the work on ``slots`` slots, relative to one slot (Amdahl's law)."""
        return 1 - self.parallel_fraction + self.parallel_fraction / slots


@dataclass(frozen=True)
class TimedModel:
    """The model that policies get of a :class:`TimedWork`: the truth, all work being one step.

    Attributes:
        left: the fraction of the work that is left, 0 to 1.
    """

    work: TimedWork
    left: float

    def step_s(self, slots: tuple[int, ...], batch: int) -> float:
        """Return the seconds of the single step, which is the whole work, on ``slots``.

        Only the total number of slots counts, not their nodes, nor the batch.
        """
        return self.work.whole_s(sum(slots))

    def efficiency(self, batch: int) -> float:
        """Return 1: a sample brings the same progress in any batch."""
        return 1.0

    def steps_left(self, batch: int) -> float:
        """Return the fraction of the single step that is left, 0 to 1, with any batch."""
        return self.left
