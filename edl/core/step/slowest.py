"""Which worker the others wait for in every step, by what all say of their last ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edl.core.step.step_record import StepRecords

FACTOR = 2.0  # as long as the others: then a worker is slow
LEAST_S = 0.01  # and so much longer: what is shorter is the noise of a busy host
OF_STEPS = 50
EVERY = 10  # steps between two looks


@dataclass(frozen=True)
class Slow:
    """``worker`` computes ``own_s`` in a step, and the others ``others_s``: medians."""

    worker: int
    own_s: float
    others_s: float

    def __str__(self) -> str:
        own, others = 1000.0 * self.own_s, 1000.0 * self.others_s
        return f"w{self.worker} computes {own:.0f} ms in a step, the others {others:.0f} ms"


class Slowest:
    """Looks at the step records of one ring.

    Attributes:
        found: the worker that is slow, if one is; by the last ``OF_STEPS`` steps.
    """

    def __init__(self) -> None:
        self.found: Slow | None = None
        self._rows: deque[npt.NDArray[np.int64]] = deque(maxlen=OF_STEPS)
        self._seen = 0
        self._named: set[int] = set()

    def restart(self) -> None:
        """A new ring stands."""
        self.found = None
        self._rows.clear()
        self._seen = 0
        self._named.clear()

    def look(self, records: StepRecords) -> Slow | None:
        """Who is found slow for the first time; ``records``: of a step, in rank order."""
        self._rows.append(records.column("compute_us") + records.column("data_us"))
        self._seen += 1
        if len(records) == 1 or self._seen < OF_STEPS or self._seen % EVERY:
            return None
        self.found = slow(records.values("worker"), np.stack(self._rows))
        if self.found is None or self.found.worker in self._named:
            return None
        self._named.add(self.found.worker)
        return self.found


def slow(workers: Sequence[int], compute_us: npt.NDArray[np.int64]) -> Slow | None:
    """Who of ``workers`` is slow; ``compute_us`` has shape (steps, workers)."""
    usual_s = np.median(compute_us, axis=0) / 1e6
    at = int(usual_s.argmax())
    others_s = float(np.median(np.delete(usual_s, at)))
    own_s = float(usual_s[at])
    if own_s < FACTOR * others_s or own_s - others_s < LEAST_S:
        return None
    return Slow(workers[at], own_s, others_s)
