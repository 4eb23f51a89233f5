"""Measure how long the steps of one worker take, by its own clock (:class:`StepTimer`)."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from edl.core.step.step_record import us
from edl.core.step_totals import StepTotals

MEDIAN_OF_STEPS = 50


class StepTimer:
    """A timer of one worker's steps in its present ring, with the median time of its last steps."""

    def __init__(self, now_s: Callable[[], float], totals: StepTotals | None = None) -> None:
        self._now_s = now_s
        self._totals = totals or StepTotals()
        self.steps_here = 0  # steps completed in this ring
        self.entered_at = 0  # the step after which this generation began
        # when it last began to wait for the others; when the last step ended
        self.waiting_since = self.ended = self._entered = self._now_s()
        # Of the last step: its own time, the wait for data, the time from its gradients to the mean
        # of all. `first_step_us`: from the beginning of the ring to its first step; 0: unknown.
        self.compute_us = self.data_us = self.reduce_us = self.first_step_us = 0
        self._data_s = 0.0  # time spent waiting for data in the open step
        self._reduced: float | None = None  # when its gradients were the mean of all
        self._durations: deque[float] = deque(maxlen=MEDIAN_OF_STEPS)
        self._is_first = True  # of this ring is the step that ends next

    def enter(self, step: int) -> None:
        """Begin to measure a new ring, which was built after `step`."""
        # The log of the switch must not show values of the ring before.
        self.steps_here, self.entered_at, self.first_step_us = 0, step, 0
        self.waiting_since = self._entered = self._now_s()
        self._is_first = True

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Count the time inside a `with` block as waiting for data, unless the block raises."""
        began_s = self._now_s()
        yield
        self.load(self._now_s() - began_s)

    def load(self, seconds: float) -> None:
        """Add `seconds` to the time for which this worker waits for data in the open step."""
        self._data_s += seconds

    def wait(self) -> None:
        """Note that this worker begins to wait for the other workers."""
        self.waiting_since = self._now_s()
        own_us = us(self.waiting_since - max(self.ended, self._entered))  # all its own
        self.data_us = min(us(self._data_s), own_us)
        self.compute_us = own_us - self.data_us
        self._reduced = None

    def reduce(self) -> None:
        """Note that the mean of all gradients has arrived; the wait for the others ends."""
        self._reduced = self._now_s()

    def end(self) -> None:
        """Note the end of a step, and set the attributes with the times of that step."""
        now = self._now_s()
        reduced = now if self._reduced is None else self._reduced
        self.reduce_us = us(reduced - self.waiting_since)
        self.compute_us += us(now - reduced)
        self._data_s, self._reduced = 0.0, None
        if self._is_first:
            self._is_first = False
            self.first_step_us = us(now - self._entered)
        else:
            self._durations.append(now - self.ended)
            self._totals.durations.observe(now - self.ended)
        self._totals.add(self.compute_us, self.data_us, self.reduce_us)
        self.ended = now

    @property
    def median_step_s(self) -> float:
        """The median time of the last 50 steps, in seconds; 0 before there is one."""
        return statistics.median(self._durations) if self._durations else 0.0
