"""Count for metrics the steps of one worker, and how long they took (:class:`StepTotals`)."""

from __future__ import annotations

from edl.core.metric import Histogram

STEP_BOUNDS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)


class StepTotals:
    """The number of steps that one worker completed, their durations, and those of their parts"""

    def __init__(self) -> None:
        self.steps = 0  # how many steps of the job this worker has completed since it joined
        # the durations of the steps in seconds, without the first one in each ring, which also has
        # the building of that ring in it
        self.durations = Histogram(STEP_BOUNDS_S)
        # `compute_us`: the worker's own time in all steps, in microseconds; `data_us`: the time for
        # which it waited for data, in microseconds; `reduce_us`: the time from its gradients to the
        # mean of all, in microseconds
        self.compute_us = self.data_us = self.reduce_us = 0

    def add(self, compute_us: int, data_us: int, reduce_us: int) -> None:
        """Add the parts of a complete step, in microseconds."""
        self.compute_us += compute_us
        self.data_us += data_us
        self.reduce_us += reduce_us
