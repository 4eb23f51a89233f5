"""Count for metrics the steps of one worker, and how long they took (:class:`StepTotals`)."""

from __future__ import annotations

from edl.core.metric import Histogram

STEP_BOUNDS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)


class StepTotals:
    """The steps of one worker; the training thread adds one, the port's thread reads."""

    def __init__(self) -> None:
        self.steps = 0  # since this worker joined
        # Without the first one in each ring, which also has the building of that ring in it.
        self.durations = Histogram(STEP_BOUNDS_S)
        # Its own time, that for which it waited for data, and from its gradients to their mean.
        self.compute_us = self.data_us = self.reduce_us = 0

    def add(self, compute_us: int, data_us: int, reduce_us: int) -> None:
        self.compute_us += compute_us
        self.data_us += data_us
        self.reduce_us += reduce_us
