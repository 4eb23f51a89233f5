"""How long the steps of one worker take, by its own clock."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from edl.core.step.step_record import us

MEDIAN_OF_STEPS = 50


class StepTimer:
    """The steps (or agreements) of the present ring, and the usual step of the last ones.

    ``now_s``: a monotonic clock.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self.steps_here = 0  # completed in this generation
        self.entered_at = 0  # the step after which it began
        self.waiting_since = self.ended = self._entered = self._now_s()
        self.compute_us = self.data_us = self.reduce_us = self.first_step_us = 0
        self._data_s = 0.0  # of the step that is under way
        self._reduced: float | None = None  # when its gradients were
        self._durations: deque[float] = deque(maxlen=MEDIAN_OF_STEPS)

    def enter(self, step: int) -> None:
        """Begin to measure a new ring, which stands after ``step``.

        What was measured last belongs to the ring before: a switch that is logged after one step
        would show its first step, and its wait.
        """
        self.steps_here, self.entered_at, self.first_step_us = 0, step, 0
        self.waiting_since = self._entered = self._now_s()

    @contextmanager
    def loading(self) -> Iterator[None]:
        """This worker waits for its data meanwhile."""
        began_s = self._now_s()
        yield
        self.load(self._now_s() - began_s)

    def load(self, seconds: float) -> None:
        """This worker has waited so long for its data."""
        self._data_s += seconds

    def wait(self) -> None:
        """This worker waits for the others."""
        self.waiting_since = self._now_s()
        own_us = us(self.waiting_since - max(self.ended, self._entered))
        self.data_us = min(us(self._data_s), own_us)
        self.compute_us = own_us - self.data_us
        self._reduced = None

    def reduce(self) -> None:
        """The step's gradients are the mean of all; what follows is this worker's own affair."""
        self._reduced = self._now_s()

    def end(self) -> None:
        """A step has ended."""
        now = self._now_s()
        reduced = now if self._reduced is None else self._reduced
        self.reduce_us = us(reduced - self.waiting_since)
        self.compute_us += us(now - reduced)
        self._data_s, self._reduced = 0.0, None
        if self.steps_here == 1:
            self.first_step_us = us(now - self._entered)
        else:
            self._durations.append(now - self.ended)
        self.ended = now

    @property
    def median_step_s(self) -> float:
        """The usual step; 0 before the first."""
        return statistics.median(self._durations) if self._durations else 0.0
