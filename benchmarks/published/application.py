"""Compute how fast an application trains, and the progress of its steps, from measurements.

:class:`Application` does it, by the rules of Pollux' simulator (OSDI 2021 artifact, section 5.3 of
the paper):

- The time of a step on a placement that was measured is linear in the local batch. On another
  placement it is linear over (nodes, slots, local batch) in each simplex of the Delaunay
  triangulation of all measurements.
- A batch that does not fit is made of several smaller ones, accumulated; only the last of them is
  synchronised.
- A step of batch B, m times the initial one, brings the progress of

      (v + s) / (v / m + s)

  steps of the initial batch. Here s and v are the squared norm of the gradient in that epoch and
  its variance in the initial batch, interpolated linearly between the two nearest batches that were
  measured.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from edl.errors import UsageError
from edl.policy.step_time import StepTimeSample

EPS = 1e-8  # so that a quotient of whole numbers rounds up only if it is not whole; as published
MOST_NODES = 16  # the most that were measured; more nodes count as so many, as published


class Timed(NamedTuple):
    """The measured time of a step without accumulation on a placement."""

    slots: tuple[int, ...]  # on each node
    local_batch: int  # the samples of a step that each slot trains
    step_s: float  # the seconds of the step
    # the part of `step_s` that the synchronisation takes, in seconds; accumulated batches do
    # without it
    sync_s: float


class Scaled(NamedTuple):
    """The measured time of a step on many nodes; how the slots lie on the nodes is not known."""

    nodes: int  # the number of nodes
    slots: int  # the number of slots on all nodes together
    local_batch: int  # the samples of a step that each slot trains
    step_s: float  # the seconds of the step
    # the part of `step_s` that the synchronisation takes, in seconds; accumulated batches do
    # without it
    sync_s: float


@dataclass(frozen=True)
class Validation:
    """The measurements of one training of an application, with one global batch, by epoch."""

    batch: int  # the global batch, in samples
    # the progress from the begin of the training to the end of each epoch, in steps of the initial
    # batch
    progress: tuple[float, ...]
    # the number of steps of this batch from the begin of the training to the end of each epoch
    steps: tuple[float, ...]
    # the squared norm of the gradient during each epoch, and its variance in the initial batch
    grad_sqr: tuple[float, ...]
    grad_var: tuple[float, ...]


class Application:
    """A measured application: its step times, and the progress of its steps, by interpolation."""

    def __init__(
        self,
        name: str,
        epochs: int,
        validations: Sequence[Validation],
        timed: Sequence[Timed],
        scaled: Sequence[Scaled],
        max_local_batch: int | None = None,
    ) -> None:
        self.name = name
        self.epochs = epochs
        self._validated = {one.batch: one for one in sorted(validations, key=lambda v: v.batch)}
        self._batches = list(self._validated)
        # the initial batch, which is the smallest measured, and the largest measured
        self.batches = self._batches[0], self._batches[-1]
        self._timed: dict[tuple[int, ...], list[Timed]] = defaultdict(list)
        for one in sorted(timed, key=lambda one: one.local_batch):
            self._timed[one.slots].append(one)
        self._points = _points(timed, scaled)
        self._interpolator: Any = None
        # the smallest local batch that was measured
        self.min_local_batch = min(one.local_batch for one in timed)
        self.max_local_batch = max_local_batch or max(one.local_batch for one in timed)
        self._ends = [min(v.progress[epoch] for v in validations) for epoch in range(epochs)]
        self._parts: dict[tuple[tuple[int, ...], int], tuple[float, float]] = {}
        self._step_s: dict[tuple[tuple[int, ...], int], float] = {}
        self._steps: dict[tuple[int, int], float] = {}
        self._rates: dict[tuple[tuple[int, ...], int, int], float] = {}

    def end_of(self, epoch: int) -> float:
        """Return the progress at which epoch `epoch` ends, in steps of the initial batch."""
        return self._ends[epoch]

    def split(self, slots: int, batch: int, always: bool = False) -> tuple[int, int]:
        """Divide a global batch among slots, and each share into batches that fit a slot."""
        smallest, largest = self.batches
        local = math.ceil(batch / slots - EPS)
        more = math.ceil(local / self.max_local_batch - EPS) - 1
        # The noise is estimated from two gradients.
        if slots == 1 and (always or batch > smallest):
            more = max(1, more)
        local = math.ceil(local / (more + 1) - EPS)
        return min(local, largest // (slots * (more + 1))), more

    def predicted_step_s(self, slots: tuple[int, ...], batch: int) -> float:
        """Return the seconds of a step, as the published oracle of Optimus predicts it."""
        key = slots, batch
        if key not in self._step_s:
            # The oracle assumes that a single slot accumulates even with the initial batch.
            local, more = self.split(sum(slots), batch, always=True)
            step_s, sync_s = self.parts(slots, local)
            self._step_s[key] = step_s + (step_s - sync_s) * more
        return self._step_s[key]

    def rate(self, slots: tuple[int, ...], batch: int, epoch: int) -> float:
        """Return the progress of a training per second, in steps of the initial batch."""
        key = slots, batch, epoch
        if key not in self._rates:
            local, more = self.split(sum(slots), batch)
            step_s, sync_s = self.parts(slots, local)
            whole = sum(slots) * local * (more + 1)
            total_s = step_s + (step_s - sync_s) * more
            self._rates[key] = self.gain(whole, epoch) / total_s
        return self._rates[key]

    def gain(self, batch: int, epoch: int) -> float:
        """Return the progress of a step of `batch` samples, in steps of the initial batch."""
        sqr, var = self._gradients(batch, epoch)
        return (var + sqr) / (var / (batch / self._batches[0]) + sqr)

    def observed(
        self, slots: tuple[int, ...], batch: int, epoch: int
    ) -> tuple[StepTimeSample, float]:
        """Return a step time as the job itself would measure it, and the gradient noise scale."""
        local, more = self.split(sum(slots), batch)
        step_s, sync_s = self.parts(slots, local)
        sqr, var = self._gradients(sum(slots) * local * (more + 1), epoch)
        scale = var / sqr * self._batches[0] if sqr > 0 else math.inf
        return StepTimeSample(sum(slots), len(slots), local, step_s, step_s - sync_s), scale

    def steps_at(self, batch: int, epoch: int) -> float:
        """Return the number of steps of `batch` samples until the end of epoch `epoch`."""
        key = batch, epoch
        if key not in self._steps:
            low, high = self._around(batch)
            self._steps[key] = _between(batch, low.batch, high.batch, low.steps, high.steps, epoch)
        return self._steps[key]

    def parts(self, slots: tuple[int, ...], local_batch: int) -> tuple[float, float]:
        """Return the seconds of a step without accumulation, and those of its synchronisation."""
        key = slots, local_batch
        if key not in self._parts:
            turned = min(slots[at:] + slots[:at] for at in range(len(slots)))
            measured = self._timed.get(turned)
            if measured is None:
                found = self._interpolate(len(slots), sum(slots), local_batch)
            else:
                found = _along(measured, local_batch)
            if found is None or not (found[0] > 0 and found[1] == found[1]):
                raise UsageError(
                    f"{self.name} was not measured with {local_batch} samples a slot on "
                    f"{sum(slots)} slots of {len(slots)} nodes, nor around it"
                )
            self._parts[key] = found
        return self._parts[key]

    def _gradients(self, batch: int, epoch: int) -> tuple[float, float]:
        """Return the squared norm of the gradient, and its variance in the initial batch."""
        smaller, larger = self._around(batch)
        sqr = _between(batch, smaller.batch, larger.batch, smaller.grad_sqr, larger.grad_sqr, epoch)
        var = _between(batch, smaller.batch, larger.batch, smaller.grad_var, larger.grad_var, epoch)
        return sqr, var

    def _around(self, batch: int) -> tuple[Validation, Validation]:
        """Return the measured trainings with the two nearest batches, below and above `batch`."""
        smallest, largest = self.batches
        if not smallest <= batch <= largest:
            raise UsageError(
                f"{self.name} was not trained with a batch of {batch}; it may be {smallest} to "
                f"{largest}"
            )
        smaller = self._batches[bisect_right(self._batches, batch) - 1]
        larger = self._batches[bisect_left(self._batches, batch)]
        return self._validated[smaller], self._validated[larger]

    def _interpolate(self, nodes: int, slots: int, local_batch: int) -> tuple[float, float] | None:
        """Return the seconds of a step and of its synchronisation, by interpolation."""
        if self._interpolator is None:
            coordinates = [point[:3] for point in self._points]
            values = [point[3:] for point in self._points]
            self._interpolator = interpolator()(coordinates, values)
        at = [min(nodes, MOST_NODES), slots, local_batch]
        step_s, sync_s = self._interpolator(at)[0]  # NaN outside of what was measured
        return float(step_s), float(sync_s)


def interpolator() -> Any:
    """Import scipy and return its class LinearNDInterpolator."""
    try:  # the import takes a while
        from scipy.interpolate import LinearNDInterpolator
    except ImportError:
        raise UsageError(
            "the published measurements are interpolated with scipy, which is not installed: "
            "`pip install 'edl-horovod[simulator]'`"
        ) from None
    return LinearNDInterpolator


def _points(timed: Sequence[Timed], scaled: Sequence[Scaled]) -> list[tuple[float, ...]]:
    """Return the measurements to interpolate, as (nodes, slots, local batch, step_s, sync_s)."""
    alike: dict[tuple[int, int, int], list[Timed]] = defaultdict(list)
    for one in timed:
        alike[len(one.slots), sum(one.slots), one.local_batch].append(one)
    means: list[tuple[float, ...]] = [
        (
            *map(float, key),
            sum(one.step_s for one in alike[key]) / len(alike[key]),
            sum(one.sync_s for one in alike[key]) / len(alike[key]),
        )
        for key in sorted(alike)
    ]
    # Points on one sphere can be triangulated in several ways. Their order, which is that of the
    # published simulator, decides which one is used.
    return means + [tuple(map(float, one)) for one in scaled]


def _along(measured: Sequence[Timed], local_batch: int) -> tuple[float, float] | None:
    """Interpolate the seconds of a step and of its synchronisation linearly in the local batch."""
    # `measured` is in ascending order of the local batch.
    batches = [one.local_batch for one in measured]
    if not batches[0] <= local_batch <= batches[-1]:
        return None
    if len(measured) == 1:
        return measured[0].step_s, measured[0].sync_s
    at = min(max(bisect_left(batches, local_batch), 1), len(batches) - 1)
    low, high = measured[at - 1], measured[at]
    width, beyond = high.local_batch - low.local_batch, local_batch - low.local_batch
    step_s = (high.step_s - low.step_s) / width * beyond + low.step_s
    sync_s = (high.sync_s - low.sync_s) / width * beyond + low.sync_s
    return step_s, sync_s


def _between(
    batch: int,
    smaller: int,
    larger: int,
    low: Sequence[float],
    high: Sequence[float],
    epoch: int,
) -> float:
    """Return a quantity for `batch` in an epoch, interpolated linearly between two batches."""
    if smaller == larger:
        return low[epoch]
    part = (batch - smaller) * high[epoch] + (larger - batch) * low[epoch]
    return part / (larger - smaller)
