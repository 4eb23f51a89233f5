"""Define jobs of a known duration, whose speed with other slots follows Amdahl's law.

:class:`TimedWork` is the work of such a job.
"""

from __future__ import annotations

from dataclasses import dataclass

from edl.cluster.state import EXACT, StepTimeError
from edl.core.policy.step_time import StepTimeSample
from edl.simulator.work import Observation


@dataclass(frozen=True)
class TimedWork:
    """The work of a job that takes a known time with a certain number of slots."""

    duration_s: float  # the seconds that the work takes with `slots` slots, above 0
    slots: int  # the number of slots for which the duration is known, at least 1
    # the fraction of the work that is divided among the slots, 0 to 1; the rest takes equally long
    # on any number of slots
    parallel_fraction: float = 1.0

    @property
    def epochs(self) -> int:
        """The number of epochs of the job, which is always 1."""
        return 1

    def end_of(self, epoch: int) -> float:
        """Return 1, the progress at the end of the only epoch, whatever `epoch` is."""
        return 1.0

    def rate(self, slots: tuple[int, ...], batch: int, epoch: int) -> float:
        """Return the progress per second, a fraction of the whole work, by Amdahl's law."""
        return 1 / self.whole_s(sum(slots))

    def model(self, epoch: int, progress: float) -> TimedModel:
        """Return the model that policies get: it has the true speed and the work yet to be done."""
        return TimedModel(self, 1 - progress)

    def observed(self, slots: tuple[int, ...], batch: int, epoch: int) -> Observation:
        """Return the step time that the job would measure, and None: no noise scale is known."""
        whole_s = self.whole_s(sum(slots))
        return StepTimeSample(sum(slots), len(slots), batch / sum(slots), whole_s, whole_s), None

    def whole_s(self, slots: int) -> float:
        """Return the seconds that the whole work, from its begin, takes with `slots` slots."""
        return self.duration_s * self._time(slots) / self._time(self.slots)

    def _time(self, slots: int) -> float:
        return 1 - self.parallel_fraction + self.parallel_fraction / slots


@dataclass(frozen=True)
class TimedModel:
    """The model that policies get of a `TimedWork`: its true speed, all work being one step."""

    work: TimedWork  # the work of the job
    left: float  # the fraction of the work that is yet to be done, 0 to 1

    @property
    def error(self) -> StepTimeError:
        """No error: the times are the true ones."""
        return EXACT

    def step_s(self, slots: tuple[int, ...], batch: int) -> float:
        """Return the seconds of the single step, which is the whole work, done or not."""
        return self.work.whole_s(sum(slots))

    def efficiency(self, batch: int) -> float:
        """Return 1, the statistical efficiency: a sample is worth the same in any `batch`."""
        return 1.0

    def steps_left(self, batch: int) -> float:
        """Return the fraction of the single step that is yet to be done, 0 to 1."""
        return self.left
