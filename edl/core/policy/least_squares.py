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
    derivatives: Callable[[Vector], Vector],
    rounds: int,
    tolerance: float,
) -> Vector:
    """Return the parameters near ``start`` that minimise the sum of the squares of ``errors``.

    The result is a local minimum, or the best parameters when the search ended. The same arguments
    give the same result. Parameters are not bounded.

    Args:
        errors: a function that returns the vector of errors for a vector of parameters.
        start: the parameters to begin with; it is not changed.
        derivatives: a function that returns, for a vector of parameters, the matrix of the
            derivatives of each error (row) by each parameter (column).
        rounds: the largest number of steps of the search, above 0; a step that does not lower the
            sum is undone and counts as well.
        tolerance: the search ends with the first step that lowers the sum by less than this. It
            also ends when no step lowers the sum any more.
    """
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
