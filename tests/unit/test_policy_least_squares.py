"""Levenberg and Marquardt's method on functions whose minimum is known."""

from __future__ import annotations

import numpy as np
import pytest

from edl.policy.step_time_formula import Vector, least_squares


def rosenbrock(at: Vector) -> Vector:
    return np.array([1.0 - at[0], 10.0 * (at[1] - at[0] ** 2)])


def its_derivatives(at: Vector) -> Vector:
    return np.array([[-1.0, 0.0], [-20.0 * at[0], 10.0]])


def test_a_curved_valley_is_followed_to_its_minimum() -> None:
    start = np.array([-1.2, 1.0])
    found = least_squares(rosenbrock, start, its_derivatives, rounds=100, tolerance=1e-14)
    assert found == pytest.approx([1.0, 1.0], abs=1e-5)
    assert start == pytest.approx([-1.2, 1.0])


def test_the_search_ends_after_its_rounds_and_never_becomes_worse() -> None:
    start, sums = np.array([-1.2, 1.0]), []
    for rounds in range(1, 10):
        errors = rosenbrock(least_squares(rosenbrock, start, its_derivatives, rounds, 1e-14))
        sums.append(errors @ errors)
    assert sums == sorted(sums, reverse=True)
    assert sums[0] > 1.0
    assert sums[-1] > 1e-3


def test_a_minimum_is_kept() -> None:
    start = np.array([1.0, 1.0])
    assert least_squares(rosenbrock, start, its_derivatives, 60, 1e-14) == pytest.approx(start)
