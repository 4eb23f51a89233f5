"""Minimise a sum of squares with the method of Levenberg and Marquardt: :func:`least_squares`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

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
