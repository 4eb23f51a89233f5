"""Let a policy decide by wrong step times and wrong lengths of jobs: :class:`ErrorModelPolicy`.

A simulated job's model tells a policy its true speed and its true length; that of a live job is an
estimate. The errors here are lognormal: a time is multiplied by exp(d z), z from the standard
normal distribution, so d is about the relative error. They follow from the seed, the job, the time
and what is asked, so that the same simulation gives the same answer.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from statistics import NormalDist
from typing import Any

import numpy as np

from edl.cluster.state import (
    EXACT,
    Allocation,
    ClusterJob,
    ClusterPolicy,
    ClusterState,
    StepTimeError,
    TrainingModel,
)

QUANTILES = 1 << 12

PROBES = tuple((slots,) for slots in range(1, 5))  # placements that are compared between decisions

KEPT = 4  # decisions that are compared


@dataclass(frozen=True)
class ModelErrors:
    """The errors with which a policy sees the models of jobs."""

    # the standard deviation of the logarithm of each step time: of each placement and batch, drawn
    # anew at each decision
    step_times: float = 0.0
    # the standard deviation of the logarithm of a job's remaining steps, drawn once
    lengths: float = 0.0
    seed: int = 0  # the seed of both


@dataclass(frozen=True)
class ErrorModel:
    """A model of a job whose step times and remaining steps are wrong."""

    model: TrainingModel  # the true model
    errors: ModelErrors  # the size of the errors
    job: str  # the name of the job
    now_s: float  # the time of the decision, for which its step times are drawn
    error: StepTimeError  # the error of a step time, as it is known (`seen_error`)

    def step_s(self, slots: tuple[int, ...], batch: int) -> float:
        """Return the wrong seconds of a step of `batch` samples; `slots` has them by node."""
        step_s = self.model.step_s(slots, batch)
        if not self.errors.step_times:
            return step_s
        return step_s * math.exp(step_time_error(self.errors, self.job, self.now_s, slots, batch))

    def efficiency(self, batch: int) -> float:
        """Return the statistical efficiency of a global batch of `batch` samples, from 0 to 1."""
        return self.model.efficiency(batch)

    def steps_left(self, batch: int) -> float:
        """Return the wrong number of steps until the job ends, each of `batch` samples."""
        steps = self.model.steps_left(batch)
        if not self.errors.lengths:
            return steps
        return steps * math.exp(self.errors.lengths * _drawn(self.errors.seed, self.job, "length"))


@dataclass(frozen=True)
class ErrorModelPolicy:
    """A cluster policy that decides by wrong models."""

    policy: ClusterPolicy  # the policy that decides
    errors: ModelErrors  # the size of the errors

    def __call__(self, cluster: ClusterState) -> Allocation:
        before: Mapping[str, Any] = cluster.state.get("looks", {})
        looks = {
            job.name: [*before.get(job.name, ())[1 - KEPT :], cluster.now_s] for job in cluster.jobs
        }
        error = seen_error(self.errors, cluster.jobs, looks)
        jobs = [
            replace(job, model=ErrorModel(job.model, self.errors, job.name, cluster.now_s, error))
            for job in cluster.jobs
        ]
        own = cluster.state.get("policy", {})
        decision = self.policy(replace(cluster, jobs=jobs, state=own))
        return replace(decision, state={"looks": looks, "policy": decision.state})


def seen_error(
    errors: ModelErrors, jobs: Sequence[ClusterJob], looks: Mapping[str, Sequence[float]]
) -> StepTimeError:
    """Return the error of step times, estimated from what they were at the last decisions."""
    if not errors.step_times:
        return EXACT
    # The variance is half the mean square of the differences between two decisions.
    differences = [
        step_time_error(errors, job.name, then_s, slots, job.batch)
        - step_time_error(errors, job.name, first_s, slots, job.batch)
        for job in jobs
        for first_s, then_s in pairwise(looks[job.name])
        for slots in PROBES
    ]
    if not differences:
        return EXACT
    return StepTimeError(math.sqrt(float(np.mean(np.square(differences))) / 2))


def step_time_error(
    errors: ModelErrors, job: str, at_s: float, slots: tuple[int, ...], batch: int
) -> float:
    """Return the logarithm of the factor by which a step time of a job is wrong at a decision."""
    return errors.step_times * _drawn(errors.seed, job, at_s, slots, batch)


def _drawn(*of: object) -> float:
    digest = hashlib.blake2b(repr(of).encode(), digest_size=2).digest()
    return _quantiles()[int.from_bytes(digest) % QUANTILES]


@cache
def _quantiles() -> tuple[float, ...]:
    normal = NormalDist()
    return tuple(normal.inv_cdf((at + 0.5) / QUANTILES) for at in range(QUANTILES))
