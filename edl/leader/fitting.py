"""Fit the model of a job's step time in a thread, so that the leader does not wait for it.

The main entry is :class:`Fitting`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from edl.core.policy.observation import SizeMeasurement
from edl.core.policy.scaling import step_time_samples
from edl.core.policy.step_time import StepTime, StepTimeSample
from edl.core.policy.step_time_fit import fit

logger = logging.getLogger(__name__)

EVERY_S = 30.0  # between two fits


class Fitting:
    """A background fit of the step-time model, repeated as long as `look` is called."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._fitted_s: float | None = None
        self._seen: Mapping[tuple[int, int], SizeMeasurement] = {}
        self._thread: threading.Thread | None = None
        self._found: StepTime | None = None

    def look(self, seen: Mapping[tuple[int, int], SizeMeasurement]) -> StepTime | None:
        """Return a new model once, if a fit has ended; if none runs, start one when it is due."""
        if self._thread is not None:
            if self._thread.is_alive():
                return None
            self._thread = None
            return self._found
        # At once if other combinations of workers and batch are measured than in the last fit.
        now_s = self._clock()
        due = self._fitted_s is None or now_s - self._fitted_s >= EVERY_S
        if not _measured(seen) or not (due or seen.keys() != self._seen.keys()):
            return None
        thread = threading.Thread(target=self._fit, name="edl-fit", daemon=True)
        before = self._fitted_s, self._seen
        self._fitted_s, self._seen, self._found = now_s, dict(seen), None
        try:
            thread.start()
        except RuntimeError:  # the limit of threads is reached: the next look tries again
            self._fitted_s, self._seen = before
        else:
            self._thread = thread
        return None

    def _fit(self) -> None:
        try:
            self._found = fit(_measured(self._seen))
        except (ValueError, ArithmeticError) as error:  # a singular matrix is a ValueError
            logger.warning("the step times fit no model: %s", error)


def _measured(seen: Mapping[tuple[int, int], SizeMeasurement]) -> list[StepTimeSample]:
    return step_time_samples((np, one) for (np, _), one in seen.items())
