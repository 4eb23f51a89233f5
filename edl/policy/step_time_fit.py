"""Fit the model of a step's time (:mod:`edl.policy.step_time`) to measured steps: :func:`fit`.

:func:`fit` finds the seven parameters of :class:`~.step_time.StepTime`: it minimises

    L(T_step) + L(T_compute) + 0.001 (gamma - 1)^2
        + 0.01 (beta_r / alpha_r)^2 + 0.01 (beta_n / alpha_n)^2

where L is the error of the logarithms of the predicted times (:class:`Loss`). L(T_compute) covers
only measurements that include the compute time. The penalties are those of the artifact of Pollux
(``goodput.py``); they decide between models that explain the measurements equally well.

Parameters about which nothing was measured are taken to cost nothing, so that a policy tries what
the job has not tried ("prior-driven exploration", section 4.1): the reduction until two workers
trained together, and what each further worker adds until three did. A live job's reduction is told
from its computing only by steps of one worker, or by measured compute times. :class:`FitOptions`
has the other assumptions: the policies of a live job and the published policy `pollux` differ in
them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from edl.policy.observation import alike
from edl.policy.step_time import TINY, StepTime, StepTimeSample
from edl.policy.step_time_formula import (
    ALPHA_C,
    ALPHA_N,
    ALPHA_R,
    BETA_C,
    BETA_N,
    BETA_R,
    FIRST_DAMPING,
    GAMMA,
    LEAST_DAMPING,
    MOST_DAMPING,
    Setups,
    Vector,
    least_squares,
    overlapped,
    parts_of_steps,
    setups_of_steps,
)

MOST_OVERLAP = 10.0  # the largest gamma that is fitted, as in the artifact
FIRST_OVERLAP = 1.5  # the gamma that a fit starts from
OVERLAP_PENALTY = 1e-3  # of (gamma - 1)^2
GROWTH_PENALTY = 1e-2  # of (beta_r / alpha_r)^2 and of (beta_n / alpha_n)^2
LEAST_REDUCE = 0.01  # the least part of a step that a fit starts with for the reduction
GUESSED_REDUCE = 0.1  # the same for each of its parameters, where no compute time was measured
REWEIGHTINGS = 5  # the most rounds of reweighted least squares for the RMSLE
CLOSE = 1e-3  # a reweighting that changes each logarithm of a parameter by less is the last one
BOUND = 20.0  # of a parameter's logarithm
LEAST_ERROR = 1e-4  # the least RMSLE that is divided by: that of an exact fit is 0


class Loss(Enum):
    """The error L of predicted times, by the differences of their logarithms from the measured."""

    MSLE = "mean squared logarithmic error"
    RMSLE = "root mean squared logarithmic error"


@dataclass(frozen=True)
class FitOptions:
    """The assumptions of a fit of the step time. The defaults are those of a live job."""

    # An error of 10 % adds 0.01 with the MSLE and 0.1 with the RMSLE, so the penalties weigh more
    # with the MSLE: live step times are noisy.
    loss: Loss = Loss.MSLE
    constant_share: float = 0.0  # of the compute time, while only one local batch was measured
    # What the reduction between hosts costs at least, as a multiple of that on one host, while the
    # job has only trained on one host.
    far_factor: float = 0.0
    # Fit a parameter only if the measurements tell it from the others. alpha_c needs two local
    # batches that are not `alike`, gamma these and a reduction, each beta two numbers of workers,
    # alpha_r a step of one worker, or a compute time, alpha_n one of these, or a step on one host.
    # Else the penalties decide.
    separable: bool = True
    rounds: int = 60  # of one search
    tolerance: float = 1e-14  # a step that lowers the objective by less ends a search


LIVE = FitOptions()


def fit(measured: Sequence[StepTimeSample], options: FitOptions = LIVE) -> StepTime:
    """Return the model of the step time that fits the measured steps, in any order, best."""
    if not measured:
        raise ValueError("nothing was measured")
    ordered = sorted(measured, key=lambda one: (one.workers, one.hosts, one.batch, one.step_s))
    objective = Objective(ordered, options)
    found = objective.start
    for _ in range(REWEIGHTINGS if options.loss is Loss.RMSLE else 1):
        objective.reweigh(found)
        before = found
        found = least_squares(
            objective.errors, found, objective.derivatives, options.rounds, options.tolerance
        )
        if np.abs(found - before).max() < CLOSE:
            break
    values = objective.values(found)
    if not objective.setups.far.any():
        values[ALPHA_N] = max(values[ALPHA_N], options.far_factor * values[ALPHA_R])
        values[BETA_N] = max(values[BETA_N], options.far_factor * values[BETA_R])
    return StepTime(*(float(value) for value in values))


class Objective:
    """The function that `fit` minimises, as the sum of the squares of `errors`."""

    # A search varies the parameters that are fitted without bounds, in a vector `inner`: their
    # logarithms, and the logit of gamma's place between 1 and 10.

    def __init__(self, measured: Sequence[StepTimeSample], options: FitOptions) -> None:
        workers = np.array([one.workers for one in measured], float)
        hosts = np.array([one.hosts for one in measured])
        step_s = np.array([one.step_s for one in measured])
        compute_s = np.array([one.compute_s for one in measured if one.compute_s is not None])
        batches = np.array([one.batch for one in measured], float)
        self.setups = setups_of_steps(workers, hosts, batches)
        self._has_compute = np.array([one.compute_s is not None for one in measured])
        self._log_step, self._log_compute = np.log(step_s), np.log(compute_s)
        self._loss = options.loss
        self._weights = [1.0, 1.0]
        self._free = _free(self.setups, workers, self._has_compute, options.separable)
        known_s = compute_s if self._has_compute.all() else None
        self._first = _first(self.setups, step_s, known_s, self._free, options.constant_share)

    @property
    def start(self) -> Vector:
        """The vector `inner` that a search starts from: estimates from the measured times."""
        inner = np.log(np.maximum(self._first[self._free], TINY))
        if self._free[GAMMA]:
            place = (self._first[GAMMA] - 1.0) / (MOST_OVERLAP - 1.0)
            inner[-1] = np.log(place / (1.0 - place))
        return inner

    def values(self, inner: Vector) -> Vector:
        """Return all seven parameters for `inner`, in the order of `StepTime`."""
        values = self._first.copy()
        bounded = np.clip(inner, -BOUND, BOUND)
        found = np.maximum(np.exp(bounded), TINY)
        if self._free[GAMMA]:
            found[-1] = 1.0 + (MOST_OVERLAP - 1.0) / (1.0 + np.exp(-bounded[-1]))
        values[self._free] = found
        return values

    def reweigh(self, inner: Vector) -> None:
        """Set the weights of `errors` so that their sum of squares has the slope of the loss."""
        self._weights = [self._weight(errors) for errors in self._differences(self.values(inner))]

    def errors(self, inner: Vector) -> Vector:
        values = self.values(inner)
        compute, step = self._differences(values)
        weighted = self._weights[0] * compute, self._weights[1] * step
        return np.concatenate([*weighted, fit_penalties(values, self._free)])

    def derivatives(self, inner: Vector) -> Vector:
        values = self.values(inner)
        compute, reduce = _floored_parts(values, self.setups)
        batch, near, far, more = self.setups
        # The derivative of a part's logarithm by that of a parameter is the parameter's share.
        shares = np.zeros((len(batch), GAMMA))
        shares[:, ALPHA_C] = values[ALPHA_C] / compute
        shares[:, BETA_C] = values[BETA_C] * batch / compute
        shares[:, ALPHA_R] = values[ALPHA_R] * near / reduce
        shares[:, BETA_R] = values[BETA_R] * near * more / reduce
        shares[:, ALPHA_N] = values[ALPHA_N] * far / reduce
        shares[:, BETA_N] = values[BETA_N] * far * more / reduce
        of_compute = shares[self._has_compute, :ALPHA_R]
        rows = np.zeros((len(of_compute) + len(batch) + 3, GAMMA + 1))
        rows[: len(of_compute), :ALPHA_R] = self._weights[0] * of_compute
        gamma = values[GAMMA]
        by_compute, by_gamma = step_derivatives(compute, reduce, gamma)
        gamma_by_inner = (gamma - 1.0) * (MOST_OVERLAP - gamma) / (MOST_OVERLAP - 1.0)
        step = rows[len(of_compute) : -3]
        step[:, :ALPHA_R] = by_compute[:, None] * shares[:, :ALPHA_R]
        step[:, ALPHA_R:GAMMA] = (1.0 - by_compute)[:, None] * shares[:, ALPHA_R:]
        step[:, GAMMA] = by_gamma * gamma_by_inner
        step *= self._weights[1]
        _, near_growth, far_growth = fit_penalties(values, self._free)
        rows[-3, GAMMA] = np.sqrt(OVERLAP_PENALTY) * gamma_by_inner
        rows[-2, [ALPHA_R, BETA_R]] = -near_growth, near_growth
        rows[-1, [ALPHA_N, BETA_N]] = -far_growth, far_growth
        return np.asarray(rows[:, self._free])

    def _weight(self, errors: Vector) -> float:
        if not len(errors):
            return 0.0
        if self._loss is Loss.MSLE:
            return math.sqrt(1.0 / len(errors))
        root = math.sqrt(np.mean(errors**2))
        return math.sqrt(0.5 / max(root, LEAST_ERROR) / len(errors))

    def _differences(self, values: Vector) -> tuple[Vector, Vector]:
        compute, reduce = _floored_parts(values, self.setups)
        longest, powers = overlapped(compute, reduce, values[GAMMA])
        log_step = np.log(longest) + np.log(powers) / values[GAMMA]
        log_compute = np.log(compute[self._has_compute])
        return log_compute - self._log_compute, log_step - self._log_step


def _free(
    setups: Setups, workers: Vector, has_compute: npt.NDArray[np.bool_], separable: bool
) -> npt.NDArray[np.bool_]:
    near, far = setups.near > 0, setups.far > 0
    reduces = bool(near.any() or far.any())
    if not separable:
        batches, third = len(np.unique(setups.batch)) > 1, bool(setups.more.any())
        more_near, more_far = bool(near.any()) and third, bool(far.any()) and third
        return np.array([batches, True, near.any(), more_near, far.any(), more_far, reduces])
    batches = not alike(float(setups.batch.min()), float(setups.batch.max()))
    alone = bool(has_compute.any() or (workers == 1).any())
    two_near = near.any() and alone
    two_far = far.any() and (alone or near.any())
    more = _two_sizes(workers[near]), _two_sizes(workers[far])
    return np.array([batches, True, two_near, more[0], two_far, more[1], reduces and batches])


def _two_sizes(workers: Vector) -> bool:
    return len(np.unique(workers)) > 1


def _first(
    setups: Setups,
    step_s: Vector,
    compute_s: Vector | None,
    free: npt.NDArray[np.bool_],
    constant_share: float,
) -> Vector:
    if compute_s is None:
        shortest_s = float(np.min(step_s))
        constant_s, sample_s = shortest_s, shortest_s / float(np.max(setups.batch))
        reduce = GUESSED_REDUCE * shortest_s * np.ones(4)
    else:
        constant_s = float(np.min(compute_s) if free[ALPHA_C] else np.mean(compute_s))
        sample_s = float(np.mean(compute_s / setups.batch))
        reduce_s = float(np.mean(np.maximum(step_s - compute_s, LEAST_REDUCE * step_s)))
        reduce = np.array([0.9, 0.1, 0.9, 0.1]) * reduce_s
    # alpha_c takes a share also if it is not fitted, because only one local batch was measured.
    share = 0.5 if free[ALPHA_C] else constant_share
    reduce = np.where(free[ALPHA_R:GAMMA], reduce, TINY)
    overlap = FIRST_OVERLAP if free[GAMMA] else 1.0
    compute = max(share * constant_s, TINY), (1.0 - share) * sample_s
    return np.array([*compute, *reduce, overlap])


def step_derivatives(
    compute: Vector, reduce: Vector, gamma: float | Vector
) -> tuple[Vector, Vector]:
    """Return the derivatives of log T_step by log T_compute and by gamma, as two arrays."""
    longest = np.maximum(compute, reduce)
    one, other = compute / longest, reduce / longest
    powers = one**gamma, other**gamma
    total = powers[0] + powers[1]
    slope = (powers[0] * np.log(one) + powers[1] * np.log(other)) / total
    return powers[0] / total, slope / gamma - np.log(total) / gamma**2


def fit_penalties(values: Vector, free: npt.NDArray[np.bool_]) -> Vector:
    """Return the square roots of the three penalties that a fit adds to its squared errors."""
    near, far = free[[ALPHA_R, ALPHA_N]] & free[[BETA_R, BETA_N]]
    return np.array(
        [
            np.sqrt(OVERLAP_PENALTY) * (values[GAMMA] - 1.0),
            near * np.sqrt(GROWTH_PENALTY) * values[BETA_R] / values[ALPHA_R],
            far * np.sqrt(GROWTH_PENALTY) * values[BETA_N] / values[ALPHA_N],
        ]
    )


# ------------------------------------------------------------
# Fit the model of a step's time to the measurements of many jobs at once: `fit_all`.
#
# One search for the parameters of `StepTime` takes up to 60 rounds of small array operations, 5 ms
# together, and the leader of a cluster of a thousand jobs would spend 5 s on them. Here all jobs
# make each round together, in arrays whose first axis is the job. The objective, the start and the
# rules of the search are those of `fit` with its default options, and so are the results, up to
# rounding.

Number = TypeVar("Number", np.float64, np.bool_)
WIDTH = 4  # jobs with up to 4 times as many measurements as others are searched beside these
PARAMETERS = GAMMA + 1


def fit_all(many: Sequence[Sequence[StepTimeSample]]) -> list[StepTime]:
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
        setups = Setups(*(part[jobs] for part in self.setups))
        return _Steps(setups, self.log_s[jobs], self.weight[jobs])


class _Fits:
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
        # What is fitted and where a search starts is decided for each job as `fit` does: a few
        # microseconds beside a search. That a job's last step is repeated changes neither.
        setups = [Setups(*parts) for parts in zip(*self._steps.setups, strict=True)]
        untimed = np.zeros(width, bool)
        self._free = np.array(
            [_free(*job, untimed, LIVE.separable) for job in zip(setups, workers, strict=True)]
        )
        self._first: Vector = np.array(
            [
                _first(*job, LIVE.constant_share)
                for job in zip(setups, step_s, [None] * len(many), self._free, strict=True)
            ]
        )

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
        inner = np.log(np.maximum(self._first, TINY))
        place = (self._first[:, GAMMA] - 1.0) / (MOST_OVERLAP - 1.0)
        fitted = self._free[:, GAMMA]
        place = np.where(fitted, place, 0.5)
        inner[:, GAMMA] = np.log(place / (1.0 - place))
        return inner

    def _values(self, inner: Vector, jobs: npt.NDArray[np.int64]) -> Vector:
        bounded = np.clip(inner, -BOUND, BOUND)
        values = np.maximum(np.exp(bounded), TINY)
        values[:, GAMMA] = 1.0 + (MOST_OVERLAP - 1.0) / (1.0 + np.exp(-bounded[:, GAMMA]))
        return np.where(self._free[jobs], values, self._first[jobs])

    def _errors(self, inner: Vector, jobs: npt.NDArray[np.int64]) -> Vector:
        steps, values = self._steps.of(jobs), _columns(self._values(inner, jobs))
        compute, reduce = _floored_parts(values, steps.setups)
        longest, powers = overlapped(compute, reduce, values[GAMMA])
        log_s = np.log(longest) + np.log(powers) / values[GAMMA]
        penalties = fit_penalties(values, _columns(self._free[jobs]))[:, :, 0].T
        return np.concatenate([steps.weight * (log_s - steps.log_s), penalties], axis=1)

    def _derivatives(self, inner: Vector, jobs: npt.NDArray[np.int64]) -> Vector:
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
    return compute, np.maximum(reduce, TINY)  # it must have a logarithm
