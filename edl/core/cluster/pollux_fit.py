"""The step time of a job by what it has measured, fitted as Pollux' simulator does.

The model is :class:`edl.core.policy.step_time.StepTime`. Of each way in which the job has trained,
two times are known: of a whole step, and of a batch whose gradients are not reduced. The parameters
make this least, RMS being the root of the mean square of differences of logarithms (goodput.py of
Pollux' artifact, OSDI 2021; the paper's section 4.1 has the reasons):

    RMS(compute) + RMS(step) + 0.001 (overlap - 1)^2 + 0.01 (more^2 + far_more^2)

where more = each_worker / reduce, of one host and of several. What was not yet tried is taken to
cost nothing, so that it will be tried: reducing until there were two workers, each further one
until there were three. Two exceptions: while there was one local batch only, a half of the time is
taken to be there whatever the batch; and several hosts cost a tenth more than one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edl.core.policy.step_time import (
    MOST_OVERLAP,
    TINY,
    Measured,
    StepTime,
    Vector,
    least_squares,
)

REWEIGHTED = 5  # times, at most: a root is made of squares by weights that follow it
ROUNDS = 10  # for each of them, at most
ENOUGH = 1e-6  # of the sum: models that differ by less are as good as each other
CLOSE = 1e-3  # logarithms of parameters that are alike
LEAST_ERROR = 1e-4  # RMS that weights are made of: an exact fit has none
FAR_COSTS = 1.1  # times what one host costs, while several were not tried
ALPHA_C, BETA_C, ALPHA_R, BETA_R, ALPHA_N, BETA_N, GAMMA = range(7)


def fit_parts(measured: Sequence[Measured]) -> StepTime:
    """The model that explains the measurements best; deterministic, whatever their order.

    Args:
        measured: at least one, each with ``compute_s``.
    """
    errors = _Errors(sorted(measured, key=lambda one: (one.workers, one.hosts, one.batch)))
    inner = errors.inner(errors.start[errors.free])
    for _ in range(REWEIGHTED):
        errors.reweigh(inner)
        before = inner
        inner = least_squares(errors, inner, errors.derivatives, ROUNDS, ENOUGH)
        if np.abs(inner - before).max() < CLOSE:
            break
    values = errors.outer(inner)
    if not errors.far.any():
        values[ALPHA_N] = max(values[ALPHA_N], FAR_COSTS * values[ALPHA_R])
        values[BETA_N] = max(values[BETA_N], FAR_COSTS * values[BETA_R])
    return StepTime(*(float(value) for value in values))


class _Errors:
    """What is squared and summed, as a function of the free parameters.

    Their inner form has no bounds: logarithms, and of the overlap its place between 1 and the most.
    """

    def __init__(self, measured: Sequence[Measured]) -> None:
        workers = np.array([one.workers for one in measured], float)
        self.batch = np.array([one.batch for one in measured], float)
        self.far = np.array([one.hosts > 1 for one in measured], float)
        self.near = np.where(workers > 1, 1.0 - self.far, 0.0)
        self.more = np.maximum(workers - 2.0, 0.0)
        step_s = np.array([one.step_s for one in measured])
        compute_s = np.array([one.compute_s or one.step_s for one in measured])
        self.log_compute, self.log_step = np.log(compute_s), np.log(step_s)
        self.start, self.free = _start(self, compute_s, step_s)
        self.weights = np.ones(2)

    def inner(self, values: Vector) -> Vector:
        """The free parameters without bounds."""
        found = np.log(np.maximum(values, TINY))
        if self.free[GAMMA]:
            part = (values[-1] - 1.0) / (MOST_OVERLAP - 1.0)
            found[-1] = np.log(part / (1.0 - part))
        return found

    def outer(self, inner: Vector) -> Vector:
        """All parameters."""
        values = self.start.copy()
        bounded = np.clip(inner, -20.0, 20.0)
        found = np.maximum(np.exp(bounded), TINY)
        if self.free[GAMMA]:
            found[-1] = 1.0 + (MOST_OVERLAP - 1.0) / (1.0 + np.exp(-bounded[-1]))
        values[self.free] = found
        return values

    def reweigh(self, inner: Vector) -> None:
        """Make the sum of squares have the slope of the roots, here."""
        compute, step = self._differences(self.outer(inner))
        roots = np.sqrt([np.mean(compute**2), np.mean(step**2)])
        self.weights = np.sqrt(0.5 / np.maximum(roots, LEAST_ERROR) / len(self.batch))

    def __call__(self, inner: Vector) -> Vector:
        """The errors, weighted, and the penalties."""
        values = self.outer(inner)
        compute, step = self._differences(values)
        return np.concatenate(
            [self.weights[0] * compute, self.weights[1] * step, _penalties(values)]
        )

    def derivatives(self, inner: Vector) -> Vector:
        """Of each error by each free parameter in its inner form."""
        values = self.outer(inner)
        compute, reduce = self._parts(values)
        rows = len(self.batch)
        shares = np.zeros((rows, GAMMA))  # of each parameter in its part, which is d log / d log
        shares[:, ALPHA_C] = values[ALPHA_C] / compute
        shares[:, BETA_C] = values[BETA_C] * self.batch / compute
        shares[:, ALPHA_R] = values[ALPHA_R] * self.near / reduce
        shares[:, BETA_R] = values[BETA_R] * self.near * self.more / reduce
        shares[:, ALPHA_N] = values[ALPHA_N] * self.far / reduce
        shares[:, BETA_N] = values[BETA_N] * self.far * self.more / reduce
        found = np.zeros((2 * rows + 3, GAMMA + 1))
        found[:rows, :ALPHA_R] = self.weights[0] * shares[:, :ALPHA_R]
        of_compute, by_gamma = _overlap(values[GAMMA], compute, reduce)
        step = found[rows:-3]
        step[:, :ALPHA_R] = of_compute[:, None] * shares[:, :ALPHA_R]
        step[:, ALPHA_R:GAMMA] = (1.0 - of_compute)[:, None] * shares[:, ALPHA_R:]
        gamma = values[GAMMA]
        of_inner = (gamma - 1.0) * (MOST_OVERLAP - gamma) / (MOST_OVERLAP - 1.0)
        step[:, GAMMA] = by_gamma * of_inner
        step *= self.weights[1]
        penalties = _penalties(values)
        found[-3, GAMMA] = np.sqrt(1e-3) * of_inner
        found[-2, [ALPHA_R, BETA_R]] = -penalties[1], penalties[1]
        found[-1, [ALPHA_N, BETA_N]] = -penalties[2], penalties[2]
        return np.asarray(found[:, self.free])

    def _parts(self, values: Vector) -> tuple[Vector, Vector]:
        compute = values[ALPHA_C] + values[BETA_C] * self.batch
        near = self.near * (values[ALPHA_R] + values[BETA_R] * self.more)
        far = self.far * (values[ALPHA_N] + values[BETA_N] * self.more)
        return compute, np.maximum(near + far, TINY)

    def _differences(self, values: Vector) -> tuple[Vector, Vector]:
        compute, reduce = self._parts(values)
        gamma, longest = values[GAMMA], np.maximum(compute, reduce)
        total = (compute / longest) ** gamma + (reduce / longest) ** gamma
        step = np.log(longest) + np.log(total) / gamma
        return np.log(compute) - self.log_compute, step - self.log_step


def _start(
    errors: _Errors, compute_s: Vector, step_s: Vector
) -> tuple[Vector, npt.NDArray[np.bool_]]:
    """Parameters to begin with, and which of them are free; the others stay as they are here."""
    near, far = bool(errors.near.any()), bool(errors.far.any())
    several = len(np.unique(errors.batch)) > 1
    third = bool(errors.more.any())
    free = np.array([several, True, near, near and third, far, far and third, near or far])
    reduce_s = float(np.mean(np.maximum(step_s - compute_s, 0.01 * step_s)))
    start = np.array([0.0, 0.0, 0.9, 0.1, 0.9, 0.1, 0.0]) * reduce_s
    start[ALPHA_C] = 0.5 * float(np.min(compute_s) if several else np.mean(compute_s))
    start[BETA_C] = 0.5 * float(np.mean(compute_s / errors.batch))
    start[ALPHA_R:GAMMA] = np.where(free[ALPHA_R:GAMMA], start[ALPHA_R:GAMMA], TINY)
    start[GAMMA] = 1.5 if free[GAMMA] else 1.0
    return start, free


def _overlap(gamma: float, compute: Vector, reduce: Vector) -> tuple[Vector, Vector]:
    """Of the logarithm of a step's time: its derivatives by that of ``compute``, and by gamma."""
    longest = np.maximum(compute, reduce)
    one, other = compute / longest, reduce / longest
    powers = one**gamma, other**gamma
    total = powers[0] + powers[1]
    slope = (powers[0] * np.log(one) + powers[1] * np.log(other)) / total
    return powers[0] / total, slope / gamma - np.log(total) / gamma**2


def _penalties(values: Vector) -> Vector:
    return np.array(
        [
            np.sqrt(1e-3) * (values[GAMMA] - 1.0),
            0.1 * values[BETA_R] / values[ALPHA_R],
            0.1 * values[BETA_N] / values[ALPHA_N],
        ]
    )
