"""The model of a job's step time, fitted in a thread: it takes a while, and delays nobody."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from edl.core.policy.observation import Seen
from edl.core.policy.scaling import measured
from edl.core.policy.step_time import Measured, StepTime, fit

logger = logging.getLogger(__name__)

EVERY_S = 30.0  # between two fits


class Fitting:
    """Fits when it is asked to and something was measured since. One thread asks."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._fitted_s: float | None = None
        self._seen: Mapping[tuple[int, int], Seen] = {}
        self._thread: threading.Thread | None = None
        self._found: StepTime | None = None

    def look(self, seen: Mapping[tuple[int, int], Seen]) -> StepTime | None:
        """The newest model, once; None: there is no newer one. Begins to fit another if it is due.

        What was never seen before does not wait.

        Args:
            seen: by workers and some number that differs with the batch.
        """
        if self._thread is not None:
            if self._thread.is_alive():
                return None
            self._thread = None
            return self._found
        now_s = self._clock()
        due = self._fitted_s is None or now_s - self._fitted_s >= EVERY_S
        if not _measured(seen) or not (due or seen.keys() != self._seen.keys()):
            return None
        self._fitted_s, self._seen, self._found = now_s, dict(seen), None
        self._thread = threading.Thread(target=self._fit, name="edl-fit", daemon=True)
        self._thread.start()
        return None

    def _fit(self) -> None:
        try:
            self._found = fit(_measured(self._seen))
        except (ValueError, ArithmeticError) as error:  # a singular matrix is a ValueError
            logger.warning("the step times fit no model: %s", error)


def _measured(seen: Mapping[tuple[int, int], Seen]) -> list[Measured]:
    return measured((np, one) for (np, _), one in seen.items())
