"""Fit the model of a step's time to the measurements of many jobs at once: :func:`fit_all`.

One search for the parameters of :class:`~edl.core.policy.step_time.StepTime` takes up to 60 rounds
of small array operations, 5 ms together, and the leader of a cluster of a thousand jobs would spend
5 s on them. Here all jobs make each round together, in arrays whose first axis is the job. The
objective, the start and the rules of the search are those of
:func:`edl.core.policy.step_time_fit.fit` with its default options, and so are the results, up to
rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from edl.core.policy.least_squares import FIRST_DAMPING, LEAST_DAMPING, MOST_DAMPING, Vector
from edl.core.policy.observation import ALIKE
from edl.core.policy.step_time import TINY, StepTime, StepTimeSample
from edl.core.policy.step_time_fit import (
    FIRST_OVERLAP,
    GUESSED_REDUCE,
    LIVE,
    MOST_OVERLAP,
    OVERLAP_PENALTY,
    fit_penalties,
    step_derivatives,
)
from edl.core.policy.step_time_formula import (
    ALPHA_C,
    ALPHA_N,
    ALPHA_R,
    BETA_C,
    BETA_N,
    BETA_R,
    GAMMA,
    Setups,
    overlapped,
    parts_of_steps,
    setups_of_steps,
)

Number = TypeVar("Number", np.float64, np.bool_)

WIDTH = 4  # jobs with up to 4 times as many measurements as others are searched beside these
BOUND = 20.0  # of a parameter's logarithm, as in a single fit
PARAMETERS = GAMMA + 1


def fit_all(many: Sequence[Sequence[StepTimeSample]]) -> list[StepTime]:
    """Return, for the measured steps of each job, the model that fits them best."""
    if not all(many):
        raise ValueError("nothing was measured")
    if any(one.compute_s is not None for measured in many for one in measured):
        raise ValueError("compute times are only fitted by fit()")
    groups: dict[int, list[int]] = {}
    for at, measured in enumerate(many):
        groups.setdefault(math.ceil(math.log(len(measured), WIDTH)), []).append(at)
    found: dict[int, StepTime] = {}
    for members in groups.values():
        values = _Fits([many[at] for at in members]).search()
        for at, own in zip(members, values.tolist(), strict=True):
            found[at] = StepTime(*own)
    return [found[at] for at in range(len(many))]


class _Steps(NamedTuple):
    """The measured steps of jobs; the last axis of the arrays is the step, before it the job."""

    # Jobs with fewer steps than others are filled up with steps of weight 0.

    setups: Setups
    log_s: Vector
    weight: Vector  # the root of 1 / the number of the job's steps

    def of(self, jobs: npt.NDArray[np.int64]) -> _Steps:
        """Return the steps of some of the jobs, by their indices."""
        setups = Setups(*(part[jobs] for part in self.setups))
        return _Steps(setups, self.log_s[jobs], self.weight[jobs])


class _Fits:
    """The search for the parameters of several jobs at once."""

    def __init__(self, many: Sequence[Sequence[StepTimeSample]]) -> None:
        ordered = [
            sorted(one, key=lambda step: (step.workers, step.hosts, step.batch, step.step_s))
            for one in many
        ]
        width = max(map(len, ordered))
        filled = [[*one, *[one[-1]] * (width - len(one))] for one in ordered]
        counts = np.array([len(one) for one in ordered])[:, None]
        workers = np.array([[step.workers for step in one] for one in filled], float)
        hosts = np.array([[step.hosts for step in one] for one in filled])
        batch = np.array([[step.batch for step in one] for one in filled], float)
        step_s = np.array([[step.step_s for step in one] for one in filled])
        weight = np.where(np.arange(width) < counts, np.sqrt(1.0 / counts), 0.0)
        self._steps = _Steps(setups_of_steps(workers, hosts, batch), np.log(step_s), weight)
        self._free = _free(self._steps.setups, workers)
        self._first = _first(self._steps.setups, step_s, self._free)

    def search(self) -> Vector:
        """Search as `least_squares` does, each job with its own damping; return a row for each."""
        found = self._start()
        damping = np.full(len(found), FIRST_DAMPING)
        jobs = np.arange(len(found))  # those whose search goes on
        residuals = self._errors(found, jobs)
        for _ in range(LIVE.rounds):
            slopes = self._derivatives(found[jobs], jobs)
            turned = slopes.transpose(0, 2, 1)
            normal = turned @ slopes + damping[jobs, None, None] * np.eye(PARAMETERS)
            gradient = turned @ residuals[:, :, None]
            steps = np.linalg.solve(normal, -gradient)[:, :, 0]
            candidates = self._errors(found[jobs] + steps, jobs)
            gain = (residuals**2).sum(1) - (candidates**2).sum(1)
            better = gain > 0
            found[jobs[better]] += steps[better]
            residuals = np.where(better[:, None], candidates, residuals)
            lower = np.maximum(damping[jobs] / 3.0, LEAST_DAMPING)
            damping[jobs] = np.where(better, lower, damping[jobs] * 4.0)
            goes_on = np.where(better, gain >= LIVE.tolerance, damping[jobs] <= MOST_DAMPING)
            jobs, residuals = jobs[goes_on], residuals[goes_on]
            if not len(jobs):
                break
        return self._values(found, np.arange(len(found)))

    def _start(self) -> Vector:
        """Return what a search varies, at its start: logarithms, and the logit of gamma's place."""
        inner = np.log(np.maximum(self._first, TINY))
        place = (self._first[:, GAMMA] - 1.0) / (MOST_OVERLAP - 1.0)
        fitted = self._free[:, GAMMA]
        place = np.where(fitted, place, 0.5)
        inner[:, GAMMA] = np.log(place / (1.0 - place))
        return inner

    def _values(self, inner: Vector, jobs: npt.NDArray[np.int64]) -> Vector:
        """Return the parameters of `jobs` for `inner`, what the search varies, a row a job."""
        bounded = np.clip(inner, -BOUND, BOUND)
        values = np.maximum(np.exp(bounded), TINY)
        values[:, GAMMA] = 1.0 + (MOST_OVERLAP - 1.0) / (1.0 + np.exp(-bounded[:, GAMMA]))
        return np.where(self._free[jobs], values, self._first[jobs])

    def _errors(self, inner: Vector, jobs: npt.NDArray[np.int64]) -> Vector:
        """Return the weighted errors of the logarithms of the times, and the penalties, by job."""
        steps, values = self._steps.of(jobs), _columns(self._values(inner, jobs))
        compute, reduce = _floored_parts(values, steps.setups)
        longest, powers = overlapped(compute, reduce, values[GAMMA])
        log_s = np.log(longest) + np.log(powers) / values[GAMMA]
        penalties = fit_penalties(values, _columns(self._free[jobs]))[:, :, 0].T
        return np.concatenate([steps.weight * (log_s - steps.log_s), penalties], axis=1)

    def _derivatives(self, inner: Vector, jobs: npt.NDArray[np.int64]) -> Vector:
        """Return, for each job, the derivatives of each error (row) by each parameter (column)."""
        steps, values = self._steps.of(jobs), _columns(self._values(inner, jobs))
        compute, reduce = _floored_parts(values, steps.setups)
        batch, near, far, more = steps.setups
        by_compute, by_gamma = step_derivatives(compute, reduce, values[GAMMA])
        count, width = batch.shape
        rows = np.zeros((count, width + 3, PARAMETERS))
        step, gamma = rows[:, :width], values[GAMMA][:, 0]
        step[:, :, ALPHA_C] = by_compute * values[ALPHA_C] / compute
        step[:, :, BETA_C] = by_compute * values[BETA_C] * batch / compute
        reduced = (1.0 - by_compute) / reduce
        step[:, :, ALPHA_R] = reduced * values[ALPHA_R] * near
        step[:, :, BETA_R] = reduced * values[BETA_R] * near * more
        step[:, :, ALPHA_N] = reduced * values[ALPHA_N] * far
        step[:, :, BETA_N] = reduced * values[BETA_N] * far * more
        by_inner = (gamma - 1.0) * (MOST_OVERLAP - gamma) / (MOST_OVERLAP - 1.0)
        step[:, :, GAMMA] = by_gamma * by_inner[:, None]
        step *= steps.weight[:, :, None]
        _, near_growth, far_growth = fit_penalties(values, _columns(self._free[jobs]))[:, :, 0]
        rows[:, -3, GAMMA] = math.sqrt(OVERLAP_PENALTY) * by_inner
        rows[:, -2, ALPHA_R], rows[:, -2, BETA_R] = -near_growth, near_growth
        rows[:, -1, ALPHA_N], rows[:, -1, BETA_N] = -far_growth, far_growth
        return np.asarray(rows * self._free[jobs][:, None, :])


def _columns(values: npt.NDArray[Number]) -> npt.NDArray[Number]:
    return values.T[:, :, None]  # the parameter, the job, and one item for the step


def _floored_parts(values: Vector, setups: Setups) -> tuple[Vector, Vector]:
    compute, reduce = parts_of_steps(values, setups)
    return compute, np.maximum(reduce, TINY)


def _free(setups: Setups, workers: Vector) -> npt.NDArray[np.bool_]:
    """Return which of the seven parameters of each job are fitted, a row a job."""
    near, far = setups.near > 0, setups.far > 0
    batches = setups.batch.max(1) > ALIKE * setups.batch.min(1)
    reduces, alone = (near | far).any(1), (workers == 1).any(1)
    free = np.zeros((len(workers), PARAMETERS), bool)
    free[:, ALPHA_C], free[:, BETA_C] = batches, True
    free[:, ALPHA_R], free[:, BETA_R] = near.any(1) & alone, _differ(workers, near)
    free[:, ALPHA_N] = far.any(1) & (alone | near.any(1))
    free[:, BETA_N] = _differ(workers, far)
    free[:, GAMMA] = reduces & batches
    return free


def _differ(values: Vector, counted: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    least = np.where(counted, values, np.inf).min(1)
    return np.asarray(np.where(counted, values, -np.inf).max(1) > least)


def _first(setups: Setups, step_s: Vector, free: npt.NDArray[np.bool_]) -> Vector:
    """Return the parameters that a search starts from, a row a job, as a single fit has them."""
    shortest_s = step_s.min(1)
    first = np.where(free, GUESSED_REDUCE * shortest_s[:, None], TINY)
    share = np.where(free[:, ALPHA_C], 0.5, LIVE.constant_share)
    first[:, ALPHA_C] = np.maximum(share * shortest_s, TINY)
    first[:, BETA_C] = (1.0 - share) * shortest_s / setups.batch.max(1)
    first[:, GAMMA] = np.where(free[:, GAMMA], FIRST_OVERLAP, 1.0)
    return first
