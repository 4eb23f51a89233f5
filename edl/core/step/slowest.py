"""Find the worker that the others wait for in every step, from the times in the step records."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edl.core.slow_worker import holds_up
from edl.core.step.step_record import StepRecords

OF_STEPS = 50  # newest steps that are looked at
EVERY = 10  # steps between two looks


@dataclass(frozen=True)
class SlowestWorker:
    """A worker that is slower than the others, with the median times of a step."""

    worker: int
    own_s: float  # its median time in a step to wait for its batch and compute, not for others
    others_s: float  # the median of the others' medians

    def __str__(self) -> str:
        own, others = 1000.0 * self.own_s, 1000.0 * self.others_s
        return f"w{self.worker} computes {own:.0f} ms in a step, the others {others:.0f} ms"


class Slowest:
    """A detector of slow workers that reads the step records of one ring."""

    def __init__(self) -> None:
        self.found: SlowestWorker | None = None  # at the last comparison, also if returned before
        self._rows: deque[npt.NDArray[np.int64]] = deque(maxlen=OF_STEPS)
        self._seen = 0
        self._named: set[int] = set()

    def restart(self) -> None:
        """Forget the steps and the slow workers of the old ring."""
        self.found = None
        self._rows.clear()
        self._seen = 0
        self._named.clear()

    def look(self, records: StepRecords) -> SlowestWorker | None:
        """Add the times of a step, and return a worker that is found slow for the first time."""
        self._rows.append(records.column("compute_us") + records.column("data_us"))
        self._seen += 1
        if len(records) == 1 or self._seen < OF_STEPS or self._seen % EVERY:
            return None
        self.found = slow(records.values("worker"), np.stack(self._rows))
        if self.found is None or self.found.worker in self._named:
            return None
        self._named.add(self.found.worker)
        return self.found


def slow(workers: Sequence[int], compute_us: npt.NDArray[np.int64]) -> SlowestWorker | None:
    """Return the worker with the longest median step, with its times, if it is slow; else None."""
    usual_s = np.median(compute_us, axis=0) / 1e6
    at = int(usual_s.argmax())
    others_s = float(np.median(np.delete(usual_s, at)))
    own_s = float(usual_s[at])
    return SlowestWorker(workers[at], own_s, others_s) if holds_up(own_s, others_s) else None
