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
    """The estimate of the gradient noise scale on one worker, and this worker's measurements.

    The scale, a number of samples, says how large a global batch is worth its cost. The object is
    the attribute ``noise`` of :class:`edl.worker.loader_progress.LoaderProgress`. It is used by the
    training thread, or by a thread for which the training thread waits.

    Attributes:
        scale: the present estimate, equal on all workers that have completed the same steps; its
            ``samples`` is the scale, None while it is not known.
        before: the estimate before the last complete step, in the same form.
        asked: whether the script needs the estimate, so it is measured even without a setting.
    """

    def __init__(self) -> None:
        self.scale = self.before = NoiseScale()
        self.asked = False
        self._settings: Callable[[], JobSettings] = JobSettings
        self._shared: SharedState | None = None
        self._open = Squares()  # measured in the open step
        self._squares = Squares()  # measured in the last complete step
        self._counted: dict[int, int] = {}  # samples by worker in the last complete step

    def follow(self, settings: Callable[[], JobSettings], shared: SharedState) -> None:
        """Measure as often as the job's settings and its policy say, from now on.

        Before this call nothing is measured, unless ``asked`` is true.

        Args:
            settings: returns the settings of the job.
            shared: holds the policy of the job.
        """
        self._settings, self._shared = settings, shared

    def is_due(self, step: int) -> bool:
        """Return whether to measure the gradients of the job's step ``step``, counted from 0."""
        every = self._every
        return every > 0 and step % every == 0

    def turn(self, step: int) -> int:
        """Return the index, from 0 on, of the measurement that is due in the step ``step``.

        A measurement covers only an eighth of a large gradient, and this index says which eighth.
        For a step that is not measured it is the index of the last measurement before. It is
        ``step`` itself if no step is measured.
        """
        return step // max(1, self._every)

    @property
    def _every(self) -> int:
        """The number of steps from one measurement to the next; 0: nothing is measured.

        It is the job's setting or, if that is 0, 50 (:data:`USUAL_STEPS`) where the script or the
        policy needs the estimate.
        """
        every = self._settings().noise_scale_steps
        policy = self._shared.policy if self._shared is not None else None
        if not every and (self.asked or (policy is not None and policy.needs_noise)):
            return USUAL_STEPS
        return every

    def measured(self, own: float, mean: float) -> None:
        """Record the squared norms of the gradients of the open step, for the next step record.

        Args:
            own: the squared norm of this worker's own gradient.
            mean: the squared norm of the job's gradient, the mean over all workers' samples.
        """
        self._open = Squares(own, mean)

    def row(self) -> dict[str, int]:
        """Return the step record's fields with this worker's measurement of the step before.

        They are ``own_square`` and ``mean_square``, as the bits of float64 values; 0: not measured.
        """
        return {"own_square": _bits(self._squares.own), "mean_square": _bits(self._squares.mean)}

    def complete(self, records: StepRecords, step: int) -> None:
        """Update the estimate after a complete step, from the measurements in its step records.

        These are measurements of the gradients of the step before ``step``. The estimate stays the
        same if a worker with samples in that step has sent none. What this worker has measured in
        ``step`` goes into its next step record.

        Args:
            records: the step records of all workers.
            step: the number of the complete step.
        """
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
        self._squares, self._open = self._open, Squares()

    def header(self) -> dict[str, Any]:
        """Return ``scale`` and ``before`` as JSON values, which newcomers get by :meth:`take_over`.

        The values include the number of samples that each worker had in the last step.
        """
        return {
            "scale": self.scale.to_json(),
            "before": self.before.to_json(),
            "counted": sorted(self._counted.items()),
        }

    def take_over(self, header: Mapping[str, Any], missed: bool) -> None:
        """Replace this worker's estimate with the one of the state source.

        Args:
            header: the result of :meth:`header` on the state source.
            missed: whether this worker has missed a step that the state source has completed; then
                the measurements of this worker are dropped.
        """
        self.scale = NoiseScale.from_json(header["scale"])
        self.before = NoiseScale.from_json(header["before"])
        self._counted = {int(worker): int(samples) for worker, samples in header["counted"]}
        if missed:
            self._squares = self._open = Squares()

    def resume(self, saved: Mapping[str, Any]) -> None:
        """Restore the estimate from ``saved``, its JSON values in a checkpoint.

        If ``saved`` is empty, the job had measured nothing, and the estimate becomes unknown.
        """
        self.scale = self.before = NoiseScale.from_json(saved) if saved else NoiseScale()


def _bits(value: float) -> int:
    """Return the float64 ``value`` as the int64 with the same bits, for a step record."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _value(bits: int) -> float:
    """Return the float64 that has the same bits as the int64 ``bits`` of a step record."""
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])
