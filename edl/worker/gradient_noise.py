"""Measure the gradient noise scale on one worker (:mod:`edl.core.step.noise_scale`).

:class:`GradientNoise` has the estimate. What a worker measures in a step (the squared norms of two
gradients) is sent with its step record of the next step, so it needs no message of its own, and all
workers compute the same estimate. A step counts only if all workers with samples in it have
measured it: a worker that missed the step, and received the state of the others instead, has no
measurement of it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any

from edl.core.job_spec import JobSettings
from edl.core.step.noise_scale import NoiseScale, Squares, noise_sample
from edl.core.step.step_record import StepRecords
from edl.worker.shared_state import SharedState

USUAL_STEPS = 50  # between two measurements, where the job does not say: 0.2 % of a short step


class GradientNoise:
    """The estimate of the gradient noise scale on one worker, and this worker's measurements."""

    def __init__(self) -> None:
        # Used by the training thread, or by one for which it waits. Equal on all workers that have
        # completed the same steps; `before`: before the last of these.
        self.scale = self.before = NoiseScale()
        # the script needs the estimate, which is then measured without a setting
        self.asked = False
        self._settings: Callable[[], JobSettings] = JobSettings
        self._shared: SharedState | None = None
        self._open = Squares()  # measured in the open step
        self._squares = Squares()  # measured in the last complete step
        self._counted: dict[int, int] = {}  # samples by worker in the last complete step

    def follow(self, settings: Callable[[], JobSettings], shared: SharedState) -> None:
        """Measure as often as the job's settings and its policy say, from now on."""
        self._settings, self._shared = settings, shared

    def is_due(self, step: int) -> bool:
        """Return whether to measure the gradients of the job's step `step`, counted from 0."""
        every = self._every
        return every > 0 and step % every == 0

    def turn(self, step: int) -> int:
        """Return the measurement's index: it says which eighth of a large gradient is measured."""
        return step // max(1, self._every)

    @property
    def _every(self) -> int:
        """The number of steps from one measurement to the next; 0: nothing is measured."""
        every = self._settings().noise_scale_steps
        policy = self._shared.policy if self._shared is not None else None
        if not every and (self.asked or (policy is not None and policy.needs_noise)):
            return USUAL_STEPS
        return every

    def measured(self, own: float, mean: float) -> None:
        """Record the squared norms of the gradients of the open step, for the next step record."""
        self._open = Squares(own, mean)

    def row(self) -> dict[str, int]:
        """Return the step record's fields with this worker's measurement of the step before."""
        return {"own_square": _bits(self._squares.own), "mean_square": _bits(self._squares.mean)}

    def complete(self, records: StepRecords, step: int) -> None:
        """Update the estimate after a complete step, from the measurements in its step records."""
        # Of the gradients of the step before, which had the samples `_counted`.
        own, mean = records.column("own_square"), records.column("mean_square")
        self.before = self.scale
        if own.any():
            workers = records.values("worker")
            rows = zip(workers, own.tolist(), mean.tolist(), strict=True)
            squares = {worker: Squares(_value(a), _value(b)) for worker, a, b in rows}
            found = noise_sample(self._counted, squares)
            if found is not None:
                batch = sum(self._counted.values())
                self.scale = self.scale.after(found, batch, step + 1)
        samples = zip(records.values("worker"), records.values("samples"), strict=True)
        self._counted = dict(samples)
        self._squares, self._open = self._open, Squares()  # for the next record

    def header(self) -> dict[str, Any]:
        """Return `scale` and `before` as JSON values, which newcomers get by `take_over`."""
        return {
            "scale": self.scale.to_json(),
            "before": self.before.to_json(),
            "counted": sorted(self._counted.items()),
        }

    def take_over(self, header: Mapping[str, Any], missed: bool) -> None:
        """Replace this worker's estimate with the one of the state source."""
        self.scale = NoiseScale.from_json(header["scale"])
        self.before = NoiseScale.from_json(header["before"])
        self._counted = {int(worker): int(samples) for worker, samples in header["counted"]}
        if missed:
            self._squares = self._open = Squares()

    def resume(self, saved: Mapping[str, Any]) -> None:
        """Restore the estimate from the values in a checkpoint; empty: nothing was measured."""
        self.scale = self.before = NoiseScale.from_json(saved) if saved else NoiseScale()


def _bits(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _value(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])
