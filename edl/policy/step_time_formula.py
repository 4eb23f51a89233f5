"""Compute the times of many steps at once from the parameters of :class:`~.step_time.StepTime`.

The formula is that of :mod:`edl.policy.step_time`. All functions work on NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

# ------------------------------------------------------------
# Minimise a sum of squares with the method of Levenberg and Marquardt: `least_squares`.

Vector = npt.NDArray[np.float64]
FIRST_DAMPING = 1e-2
LEAST_DAMPING = 1e-12
MOST_DAMPING = 1e12  # at this damping a step is too short to change anything


def least_squares(
    errors: Callable[[Vector], Vector],
    start: Vector,
    derivatives: Callable[[Vector], Vector],  # of each error (row) by each parameter (column)
    rounds: int,
    tolerance: float,
) -> Vector:
    """Return the parameters near `start` that minimise the sum of the squares of `errors`."""
    found, damping = start, FIRST_DAMPING
    residuals = errors(found)
    for _ in range(rounds):
        slopes = derivatives(found)
        normal, gradient = slopes.T @ slopes, slopes.T @ residuals
        step = np.linalg.solve(normal + damping * np.eye(len(found)), -gradient)
        candidate = errors(found + step)
        if candidate @ candidate < residuals @ residuals:
            gain = residuals @ residuals - candidate @ candidate
            found, residuals = found + step, candidate
            damping = max(damping / 3.0, LEAST_DAMPING)
            if gain < tolerance:
                break
        else:
            damping *= 4.0
            if damping > MOST_DAMPING:
                break
    return found


ALPHA_C, BETA_C, ALPHA_R, BETA_R, ALPHA_N, BETA_N, GAMMA = range(7)  # the order of StepTime


class Setups(NamedTuple):
    """The inputs of the step-time formula, as arrays with one item for each step."""

    batch: Vector  # samples of each worker
    near: Vector  # 1 where two or more workers reduce on one host, else 0
    far: Vector  # the same on several hosts
    more: Vector  # workers beyond two


def setups_of_steps(workers: Vector, hosts: Vector, batch: Vector) -> Setups:
    far = np.where((workers > 1) & (hosts > 1), 1.0, 0.0)
    near = np.where(workers > 1, 1.0 - far, 0.0)
    return Setups(batch, near, far, np.maximum(workers - 2.0, 0.0))


def parts_of_steps(values: Vector, setups: Setups) -> tuple[Vector, Vector]:
    """Return T_compute and T_reduce of many steps, in seconds."""
    compute = values[ALPHA_C] + values[BETA_C] * setups.batch
    near = setups.near * (values[ALPHA_R] + values[BETA_R] * setups.more)
    far = setups.far * (values[ALPHA_N] + values[BETA_N] * setups.more)
    return compute, near + far


def overlapped(compute: Vector, reduce: Vector, gamma: float | Vector) -> tuple[Vector, Vector]:
    """Return two terms of each step's time: t and (T_compute / t)^gamma + (T_reduce / t)^gamma."""
    # Powers of the times themselves could underflow.
    longest = np.maximum(compute, reduce)
    return longest, (compute / longest) ** gamma + (reduce / longest) ** gamma


def steps_s(parameters: Sequence[float], workers: Vector, hosts: Vector, batch: Vector) -> Vector:
    values = np.array(parameters)
    compute, reduce = parts_of_steps(values, setups_of_steps(workers, hosts, batch))
    longest, powers = overlapped(compute, reduce, values[GAMMA])
    return np.asarray(longest * powers ** (1.0 / values[GAMMA]))


def throughputs(
    parameters: Sequence[float], workers: int, hosts: int, batches: Sequence[float]
) -> list[float]:
    each = np.array(batches, float)
    all_alike = np.full(len(each), workers), np.full(len(each), hosts)
    rates: list[float] = (workers * each / steps_s(parameters, *all_alike, each)).tolist()
    return rates
