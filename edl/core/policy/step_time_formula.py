"""Compute the times of many steps at once from the parameters of :class:`~.step_time.StepTime`.

The formula is that of :mod:`edl.core.policy.step_time`. All functions work on NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from edl.core.policy.least_squares import Vector

ALPHA_C, BETA_C, ALPHA_R, BETA_R, ALPHA_N, BETA_N, GAMMA = range(7)  # the order of StepTime


class Setups(NamedTuple):
    """The inputs of the formula for the time of many steps, as arrays with one item for each step.

    Attributes:
        batch: the samples of each worker in the step.
        near: 1 where two or more workers reduce on one host, else 0.
        far: 1 where two or more workers reduce on several hosts, else 0.
        more: the number of workers beyond two, at least 0.
    """

    batch: Vector
    near: Vector
    far: Vector
    more: Vector


def setups_of_steps(workers: Vector, hosts: Vector, batch: Vector) -> Setups:
    """Return the inputs of the formula for the time of many steps.

    The arguments are arrays of one shape, with one item for each step: the number of ``workers``,
    of ``hosts``, and of the samples of each worker (``batch``).
    """
    far = np.where((workers > 1) & (hosts > 1), 1.0, 0.0)
    near = np.where(workers > 1, 1.0 - far, 0.0)
    return Setups(batch, near, far, np.maximum(workers - 2.0, 0.0))


def parts_of_steps(values: Vector, setups: Setups) -> tuple[Vector, Vector]:
    """Return the compute times and the reduction times of many steps, in seconds.

    Returns:
        two arrays with one item for each step: T_compute and T_reduce of the module's formula.

    Args:
        values: the seven parameters, in the order of :class:`~.step_time.StepTime`.
        setups: the workers, hosts and batch of each step.
    """
    compute = values[ALPHA_C] + values[BETA_C] * setups.batch
    near = setups.near * (values[ALPHA_R] + values[BETA_R] * setups.more)
    far = setups.far * (values[ALPHA_N] + values[BETA_N] * setups.more)
    return compute, near + far


def overlapped(compute: Vector, reduce: Vector, gamma: float | Vector) -> tuple[Vector, Vector]:
    """Return two terms of each step's time: t and (T_compute / t)^gamma + (T_reduce / t)^gamma.

    t is the larger one of the step's T_compute and T_reduce. The step takes t times the gamma-th
    root of the second term. Powers of the times themselves could underflow.

    Args:
        compute: the compute time T_compute of each step, above 0.
        reduce: the reduction time T_reduce of each step.
        gamma: how far computing and reduction overlap, from 1 to 10.
    """
    longest = np.maximum(compute, reduce)
    return longest, (compute / longest) ** gamma + (reduce / longest) ** gamma


def steps_s(parameters: Sequence[float], workers: Vector, hosts: Vector, batch: Vector) -> Vector:
    """Return the predicted times of many steps in seconds, as an array.

    All arguments but the first, and the result, are arrays of one shape with one item for each
    step.

    Args:
        parameters: the seven parameters, in the order of :class:`~.step_time.StepTime`.
        workers: the numbers of workers.
        hosts: the numbers of hosts that they are on.
        batch: the numbers of samples of each worker.
    """
    values = np.array(parameters)
    compute, reduce = parts_of_steps(values, setups_of_steps(workers, hosts, batch))
    longest, powers = overlapped(compute, reduce, values[GAMMA])
    return np.asarray(longest * powers ** (1.0 / values[GAMMA]))


def throughputs(
    parameters: Sequence[float], workers: int, hosts: int, batches: Sequence[float]
) -> list[float]:
    """Return the predicted throughput of all workers together, for each batch in order.

    A throughput is in samples a second.

    Args:
        parameters: the seven parameters, in the order of :class:`~.step_time.StepTime`.
        workers: the number of workers.
        hosts: the number of hosts that they are on.
        batches: the batches, each in samples of one worker in a step.
    """
    each = np.array(batches, float)
    all_alike = np.full(len(each), workers), np.full(len(each), hosts)
    rates: list[float] = (workers * each / steps_s(parameters, *all_alike, each)).tolist()
    return rates
