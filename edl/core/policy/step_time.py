"""How long a step takes with n workers and b samples of each: Pollux' model, and its fit.

    compute = a_c + b_c * b
    reduce  = 0 with one worker; a + b * max(n - 2, 0), with a pair (a, b) for workers on one host
              and another one for workers on several
    step    = (compute^g + reduce^g)^(1/g)       g from 1 (one after the other) to 10 (at once)

(Pollux, OSDI 2021; adaptdl/goodput.py.) It is fitted to what was measured by the squares of
differences of logarithms. What no measurement speaks of stays as it was assumed: a job that has
only trained with one worker learns nothing of reducing, and takes that to cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edl.core.record import Record

Vector = npt.NDArray[np.float64]

ROUNDS = 60
TINY = 1e-8  # no part is shorter, in seconds
MOST_OVERLAP = 10.0


@dataclass(frozen=True)
class Measured:
    """``workers`` on ``hosts`` took ``step_s`` for a step of ``batch`` samples of each.

    Attributes:
        compute_s: the part of it that a batch takes whose gradients are not reduced; None: that was
            not told apart, and :func:`fit` does not ask for it.
    """

    workers: int
    hosts: int
    batch: float
    step_s: float
    compute_s: float | None = None


@dataclass(frozen=True)
class StepTime(Record):
    """The model; times in seconds, ``each_`` for a sample or a worker more."""

    compute_s: float = TINY
    each_sample_s: float = TINY
    reduce_s: float = TINY  # two workers on one host
    each_worker_s: float = TINY
    far_reduce_s: float = TINY  # two workers on two hosts
    each_far_worker_s: float = TINY
    overlap: float = 1.0

    def step_s(self, workers: int, hosts: int, batch: float) -> float:
        """What a step takes."""
        return float(self.steps_s(np.array([workers]), np.array([hosts]), np.array([batch]))[0])

    def steps_s(self, workers: Vector, hosts: Vector, batch: Vector) -> Vector:
        """What steps take: the same for arrays of one shape."""
        return predict(self._vector(), workers, hosts, batch)

    def throughput(self, workers: int, hosts: int, batch: float) -> float:
        """Samples a second of all workers together."""
        return self.throughputs(workers, hosts, [batch])[0]

    def throughputs(self, workers: int, hosts: int, batches: Sequence[float]) -> list[float]:
        """The same with each of these batches."""
        each = np.array(batches, float)
        all_alike = np.full(len(each), workers), np.full(len(each), hosts)
        rates: list[float] = (workers * each / predict(self._vector(), *all_alike, each)).tolist()
        return rates

    def _vector(self) -> Vector:
        parts = (self.compute_s, self.each_sample_s, self.reduce_s, self.each_worker_s)
        return np.array([*parts, self.far_reduce_s, self.each_far_worker_s, self.overlap])


def fit(measured: Sequence[Measured]) -> StepTime:
    """The model that explains the measurements best.

    Raises:
        ValueError: there is none.
    """
    if not measured:
        raise ValueError("nothing was measured")
    workers = np.array([one.workers for one in measured])
    hosts = np.array([one.hosts for one in measured])
    batch = np.array([one.batch for one in measured], float)
    logs = np.log([one.step_s for one in measured])
    free = _free(workers, hosts, batch)
    start = np.full(7, TINY)
    shortest = float(np.exp(logs.min()))
    start[0], start[1] = 0.5 * shortest, 0.5 * shortest / float(batch.max())
    start[2:6] = 0.1 * shortest
    start[6] = 1.5
    if not free[0]:  # one size of a batch: what it costs cannot be told from what each sample does
        start[0], start[1] = TINY, shortest / float(batch.max())
    start = np.where(free, start, _ASSUMED if free[0] else np.where(_COMPUTE, start, _ASSUMED))

    def errors(inner: Vector) -> Vector:
        values = start.copy()
        values[free] = _outer(inner, free)
        predicted = np.log(predict(values, workers, hosts, batch))
        penalties = (
            np.sqrt(1e-3) * (values[6] - 1.0),
            0.1 * values[3] / values[2] if free[3] else 0.0,
            0.1 * values[5] / values[4] if free[5] else 0.0,
        )
        return np.concatenate([(predicted - logs) / np.sqrt(len(logs)), penalties])

    best = least_squares(errors, _inner(start[free], free))
    start[free] = _outer(best, free)
    return StepTime(*(float(value) for value in start))


_ASSUMED = np.array([TINY] * 6 + [1.0])
_COMPUTE = np.array([True, True] + [False] * 5)


def _free(workers: Vector, hosts: Vector, batch: Vector) -> npt.NDArray[np.bool_]:
    """Which parameters the measurements speak of."""
    near, far = (workers > 1) & (hosts == 1), (workers > 1) & (hosts > 1)
    return np.array(
        [
            len(np.unique(batch)) > 1,
            True,
            near.any(),
            bool((workers[near] > 2).any()) and len(np.unique(workers[near])) > 1,
            far.any(),
            bool((workers[far] > 2).any()) and len(np.unique(workers[far])) > 1,
            bool((near | far).any()) and len(np.unique(batch)) > 1,
        ]
    )


def predict(values: Vector, workers: Vector, hosts: Vector, batch: Vector) -> Vector:
    """What steps take, in seconds, by parameters in the order of :class:`StepTime`."""
    compute = values[0] + values[1] * batch
    far = hosts > 1
    more = np.maximum(workers - 2, 0)
    reduce = np.where(far, values[4] + values[5] * more, values[2] + values[3] * more)
    reduce = np.where(workers > 1, reduce, 0.0)
    longest = np.maximum(compute, reduce)
    overlap = values[6]
    shares = (compute / longest) ** overlap + (reduce / longest) ** overlap
    return np.asarray(longest * shares ** (1.0 / overlap))


def _inner(values: Vector, free: npt.NDArray[np.bool_]) -> Vector:
    """Without bounds: logarithms, and of the overlap its place between 1 and the most."""
    inner = np.log(np.maximum(values, TINY))
    if free[6]:
        part = (values[-1] - 1.0) / (MOST_OVERLAP - 1.0)
        inner[-1] = np.log(part / (1.0 - part))
    return inner


def _outer(inner: Vector, free: npt.NDArray[np.bool_]) -> Vector:
    inner = np.clip(inner, -20.0, 20.0)
    values = np.maximum(np.exp(inner), TINY)
    if free[6]:
        values[-1] = 1.0 + (MOST_OVERLAP - 1.0) / (1.0 + np.exp(-inner[-1]))
    return values


def least_squares(
    errors: Callable[[Vector], Vector],
    start: Vector,
    derivatives: Callable[[Vector], Vector] | None = None,
    rounds: int = ROUNDS,
    enough: float = 1e-14,
) -> Vector:
    """Levenberg and Marquardt's method.

    Args:
        derivatives: of each error (a row) by each parameter; None: by differences.
        enough: a step that makes the sum of squares less by no more is the last.
    """
    at, damping = start, 1e-2
    now = errors(at)
    for _ in range(rounds):
        slopes = _differences(errors, at, now) if derivatives is None else derivatives(at)
        normal, downhill = slopes.T @ slopes, slopes.T @ now
        step = np.linalg.solve(normal + damping * np.eye(len(at)), -downhill)
        then = errors(at + step)
        if then @ then < now @ now:
            gained = now @ now - then @ then
            at, now, damping = at + step, then, max(damping / 3.0, 1e-12)
            if gained < enough:
                break
        else:
            damping *= 4.0
            if damping > 1e12:
                break
    return at


def _differences(errors: Callable[[Vector], Vector], at: Vector, now: Vector) -> Vector:
    beside = [(errors(at + 1e-6 * unit) - now) / 1e-6 for unit in np.eye(len(at))]
    return np.stack(beside, axis=1)
