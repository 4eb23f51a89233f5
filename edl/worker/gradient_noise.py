"""One worker's part in measuring the gradient noise scale (:mod:`edl.core.step.noise_scale`).

What it has measured in a step rides on the row of the next one, so it costs no collective, and all
workers add the same numbers to the same averages. A step counts only when all whose samples are in
it have measured it: who missed it, and has the others' state instead, has nothing to say of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

from edl.core.job_spec import JobSettings
from edl.core.step.noise_scale import NoiseScale, Squares, measured
from edl.core.step.step_record import StepRecords
from edl.worker.shared_state import SharedState

USUAL_STEPS = 50  # between two measurements, where the job does not say: 0.2 % of a short step


class GradientNoise:
    """Runs in the training thread, or in one that it waits for.

    Attributes:
        scale: what is known, equal on all workers that have completed the same steps.
        before: what was known before the last complete step.
        asked: the script needs it.
    """

    def __init__(self) -> None:
        self.scale = self.before = NoiseScale()
        self.asked = False
        self._settings: Callable[[], JobSettings] = JobSettings
        self._shared: SharedState | None = None
        self._open = Squares()  # of the step that is under way
        self._squares = Squares()  # of the last one
        self._counted: dict[int, int] = {}  # samples by worker, of the last one

    def follow(self, settings: Callable[[], JobSettings], shared: SharedState) -> None:
        """Measure as the job's settings and its policy say."""
        self._settings, self._shared = settings, shared

    def is_due(self, step: int) -> bool:
        """Whether the gradients of that step are to be measured."""
        every = self._every
        return every > 0 and step % every == 0

    def turn(self, step: int) -> int:
        """The how many-th of those that are measured it is."""
        return step // max(1, self._every)

    @property
    def _every(self) -> int:
        """Steps between two that are measured; 0: none is."""
        every = self._settings().noise_scale_steps
        policy = self._shared.policy if self._shared is not None else None
        if not every and (self.asked or (policy is not None and policy.needs_noise)):
            return USUAL_STEPS
        return every

    def measured(self, own: float, mean: float) -> None:
        """Squared norms of this worker's gradient and of the job's, in the open step."""
        self._open = Squares(own, mean)

    def row(self) -> dict[str, int]:
        """What the step record says of the step before."""
        return {"own_square": _bits(self._squares.own), "mean_square": _bits(self._squares.mean)}

    def complete(self, records: StepRecords, step: int) -> None:
        """Add what the rows of a complete step say of the one before; ``step``: its number."""
        own, mean = records.column("own_square"), records.column("mean_square")
        self.before = self.scale
        if own.any():
            workers = records.values("worker")
            rows = zip(workers, own.tolist(), mean.tolist(), strict=True)
            squares = {worker: Squares(_value(a), _value(b)) for worker, a, b in rows}
            found = measured(self._counted, squares)
            if found is not None:
                batch = sum(self._counted.values())
                self.scale = self.scale.after(found, batch, step + 1)
        samples = zip(records.values("worker"), records.values("samples"), strict=True)
        self._counted = dict(samples)
        self._squares, self._open = self._open, Squares()

    def header(self) -> dict[str, Any]:
        """For those who take it over, as JSON values."""
        return {
            "scale": self.scale.to_json(),
            "before": self.before.to_json(),
            "counted": sorted(self._counted.items()),
        }

    def take_over(self, header: Mapping[str, Any], missed: bool) -> None:
        """Take what the state source knows; ``missed``: it has completed one step more."""
        self.scale = NoiseScale.from_json(header["scale"])
        self.before = NoiseScale.from_json(header["before"])
        self._counted = {int(worker): int(samples) for worker, samples in header["counted"]}
        if missed:
            self._squares = self._open = Squares()

    def resume(self, saved: Mapping[str, Any]) -> None:
        """From a checkpoint; empty: of a job that did not measure."""
        self.scale = self.before = NoiseScale.from_json(saved) if saved else NoiseScale()


def _bits(value: float) -> int:
    """A float64 as an int64 of a row."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _value(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])
