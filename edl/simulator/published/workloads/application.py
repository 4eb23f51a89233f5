"""How fast an application trains, and how far each step brings it, from what was measured.

The rules are those of Pollux' simulator (OSDI 2021 artifact, section 5.3 of the paper):

- the time of a step on a placement that was measured is linear in the local batch; on another it is
  linear over (nodes, slots, local batch) in each simplex of the Delaunay triangulation of all that
  was measured;
- a batch larger than fits is made of several, accumulated; only the last of them is synchronised;
- a step of batch B, m times the initial one, brings the progress

      (v + s) / (v / m + s)

  of steps of the initial batch, s and v being the squared norm and the variance of the gradient in
  that epoch: linear between the two nearest batches that were measured.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from edl.core.policy.step_time import Measured
from edl.errors import UsageError

EPS = 1e-8  # so that a quotient of whole numbers rounds up only if it is not whole; as published
MOST_NODES = 16  # that were measured; more count as so many, as published


class Timed(NamedTuple):
    """A measurement of a step of one batch.

    Attributes:
        sync_s: the part of ``step_s`` that accumulated batches do not have.
    """

    slots: tuple[int, ...]  # of each node
    local_batch: int
    step_s: float
    sync_s: float


class Scaled(NamedTuple):
    """A measurement on many nodes, of which only the numbers of nodes and slots are known."""

    nodes: int
    slots: int
    local_batch: int
    step_s: float
    sync_s: float


@dataclass(frozen=True)
class Validation:
    """A training with one batch, epoch by epoch.

    Attributes:
        progress: at the end of each epoch, in steps of the initial batch.
        steps: the same, in steps of this batch.
        grad_sqr, grad_var: squared norm and variance of the gradient during each.
    """

    batch: int
    progress: tuple[float, ...]
    steps: tuple[float, ...]
    grad_sqr: tuple[float, ...]
    grad_var: tuple[float, ...]


class Application:
    """One application; see the module for the rules.

    Args:
        epochs: after which it is trained.
        validations: at least one.
        max_local_batch: that fits into a slot; None: the largest measured.

    Attributes:
        batches: the initial one, and the largest that it may be trained with.
    """

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
        self.batches = self._batches[0], self._batches[-1]
        self._timed: dict[tuple[int, ...], list[Timed]] = defaultdict(list)
        for one in sorted(timed, key=lambda one: one.local_batch):
            self._timed[one.slots].append(one)
        self._points = _points(timed, scaled)
        self._interpolator: Any = None
        self.min_local_batch = min(one.local_batch for one in timed)
        self.max_local_batch = max_local_batch or max(one.local_batch for one in timed)
        self._ends = [min(v.progress[epoch] for v in validations) for epoch in range(epochs)]
        self._parts: dict[tuple[tuple[int, ...], int], tuple[float, float]] = {}
        self._step_s: dict[tuple[tuple[int, ...], int], float] = {}
        self._steps: dict[tuple[int, int], float] = {}
        self._rates: dict[tuple[tuple[int, ...], int, int], float] = {}

    def end_of(self, epoch: int) -> float:
        """Progress at the end of an epoch, counted from 0."""
        return self._ends[epoch]

    def split(self, slots: int, batch: int, always: bool = False) -> tuple[int, int]:
        """The local batch, and how many are accumulated before the last of a step.

        One slot alone accumulates at least one where the batch is larger than the initial one: the
        noise of the gradient needs two to be estimated.

        Args:
            always: it does so for the initial batch, too.
        """
        smallest, largest = self.batches
        local = math.ceil(batch / slots - EPS)
        more = math.ceil(local / self.max_local_batch - EPS) - 1
        if slots == 1 and (always or batch > smallest):
            more = max(1, more)
        local = math.ceil(local / (more + 1) - EPS)
        return min(local, largest // (slots * (more + 1))), more

    def predicted_step_s(self, slots: tuple[int, ...], batch: int) -> float:
        """Seconds of a step, as the published oracle of Optimus has it: with ``always``."""
        key = slots, batch
        if key not in self._step_s:
            local, more = self.split(sum(slots), batch, always=True)
            step_s, sync_s = self.parts(slots, local)
            self._step_s[key] = step_s + (step_s - sync_s) * more
        return self._step_s[key]

    def rate(self, slots: tuple[int, ...], batch: int, epoch: int) -> float:
        """Progress a second.

        Raises:
            UsageError: that placement with that batch is outside of what was measured.
        """
        key = slots, batch, epoch
        if key not in self._rates:
            local, more = self.split(sum(slots), batch)
            step_s, sync_s = self.parts(slots, local)
            whole = sum(slots) * local * (more + 1)
            total_s = step_s + (step_s - sync_s) * more
            self._rates[key] = self.gain(whole, epoch) / total_s
        return self._rates[key]

    def gain(self, batch: int, epoch: int) -> float:
        """Progress of a step of this batch."""
        sqr, var = self._gradients(batch, epoch)
        return (var + sqr) / (var / (batch / self._batches[0]) + sqr)

    def observed(self, slots: tuple[int, ...], batch: int, epoch: int) -> tuple[Measured, float]:
        """A step of this batch as the job itself times it, and its noise scale in samples.

        Infinite: the gradients are nothing but noise.

        Raises:
            UsageError: see :meth:`rate`.
        """
        local, more = self.split(sum(slots), batch)
        step_s, sync_s = self.parts(slots, local)
        sqr, var = self._gradients(sum(slots) * local * (more + 1), epoch)
        scale = var / sqr * self._batches[0] if sqr > 0 else math.inf
        return Measured(sum(slots), len(slots), local, step_s, step_s - sync_s), scale

    def steps_at(self, batch: int, epoch: int) -> float:
        """Steps of this batch until the end of an epoch, from the first on."""
        key = batch, epoch
        if key not in self._steps:
            low, high = self._around(batch)
            self._steps[key] = _between(batch, low.batch, high.batch, low.steps, high.steps, epoch)
        return self._steps[key]

    def parts(self, slots: tuple[int, ...], local_batch: int) -> tuple[float, float]:
        """Seconds of a step of one batch, and of its synchronisation.

        Placements that are rotations of one another are one.

        Raises:
            UsageError: see :meth:`rate`.
        """
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
        """Their squared norm, and their variance in the initial batch."""
        smaller, larger = self._around(batch)
        sqr = _between(batch, smaller.batch, larger.batch, smaller.grad_sqr, larger.grad_sqr, epoch)
        var = _between(batch, smaller.batch, larger.batch, smaller.grad_var, larger.grad_var, epoch)
        return sqr, var

    def _around(self, batch: int) -> tuple[Validation, Validation]:
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
        if self._interpolator is None:
            coordinates = [point[:3] for point in self._points]
            values = [point[3:] for point in self._points]
            self._interpolator = interpolator()(coordinates, values)
        at = [min(nodes, MOST_NODES), slots, local_batch]
        step_s, sync_s = self._interpolator(at)[0]
        return float(step_s), float(sync_s)


def interpolator() -> Any:
    """scipy's LinearNDInterpolator; it is imported when it is needed, for it takes a while.

    Raises:
        UsageError: scipy is not installed.
    """
    try:
        from scipy.interpolate import LinearNDInterpolator
    except ImportError:
        raise UsageError(
            "the published measurements are interpolated with scipy, which is not installed: "
            "`pip install 'edl-horovod[simulator]'`"
        ) from None
    return LinearNDInterpolator


def _points(timed: Sequence[Timed], scaled: Sequence[Scaled]) -> list[tuple[float, ...]]:
    """(nodes, slots, local batch, step_s, sync_s), each once, in the published order.

    Of placements with the same numbers it is the mean. The order decides how a set of points on one
    sphere is triangulated, of which the measurements have many.
    """
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
    return means + [tuple(map(float, one)) for one in scaled]


def _along(measured: Sequence[Timed], local_batch: int) -> tuple[float, float] | None:
    """Linear in the local batch; None: it lies outside."""
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
    if smaller == larger:
        return low[epoch]
    part = (batch - smaller) * high[epoch] + (larger - batch) * low[epoch]
    return part / (larger - smaller)
