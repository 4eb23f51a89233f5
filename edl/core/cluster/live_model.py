"""Describe a live job to cluster policies: its speed on other slots, and the work that is left.

**Speed.** The measured steps of the job, and the sizes of its curve that it has not measured, are
fitted by the model of a step's time (:mod:`edl.core.policy.step_time`). The model's result is
corrected by its error at the measurement with the nearest number of workers, so a measured size is
predicted as it was measured. On other slots the global batch is as the script sets it: as a rule
each worker trains as many samples in a step as before, and all workers together train more. A job
about which nothing is known is taken to train one sample a second on each slot, with linear
speed-up, so that policies try more slots ("prior-driven exploration", Pollux, OSDI 2021, section
4.1).

**Work left.** The samples that the job itself says are left; or those of the number of steps that
its user has given. If neither is known, the job has as much service left as:

1. its user's duration, in slot-seconds, less what it has attained; or
2. what it has attained so far, and at least :data:`LEAST_SERVICE_S` seconds on each of its fewest
   slots. The lengths of training jobs have heavy tails: the longer a job has run, the longer it
   goes on, and with a Pareto distribution the mean of what is left grows in proportion to the age.
   So a policy that serves the shortest remaining time serves the job with the least attained
   service, as Tiresias does (NSDI 2019, section 3) for the same reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, lru_cache

from edl.core.cluster.state import EXACT, StepTimeError
from edl.core.cluster.view import JobHints, JobMeasurements, JobView
from edl.core.policy.step_time import StepTime, StepTimeSample
from edl.core.policy.step_time_fits import fit_all
from edl.core.step.batching import Batching

FITTED = 20_000  # models that are kept, twice as many as a cluster may have jobs
ROUNDED_TO = 0.01  # of the logarithms of times and batches to which a model is fitted
LEAST_SERVICE_S = 60.0  # of a job that has just begun, and may be any length
LEAST_LEFT_S = 1.0  # of a job that takes longer than its user has said
UNKNOWN_SPEED = StepTime(each_sample_s=1.0)


@dataclass(frozen=True)
class LiveModel:
    """The known speed and remaining work of a live job, a `TrainingModel`."""

    # the step times that the model is fitted to; empty: nothing is known of the job's speed
    samples: tuple[StepTimeSample, ...]
    left: float | None  # the samples left to train; None: not known
    left_slot_s: float  # where `left` is not known: the slot-seconds that are left
    fewest: int  # the fewest slots that the job may have, on which `left_slot_s` would be spent
    noise_scale: float | None  # the noise scale of the gradients, in samples; None: not known
    smallest_batch: int  # the smallest global batch of the job, in samples
    # the sizes of the script's batches; None: the cluster sets the global batch
    batching: Batching | None
    # fits the models of this job and of others, which are read together
    models: StepTimeModels = field(repr=False, compare=False)

    @cached_property
    def step_time(self) -> StepTime:
        """The fitted model of a step's time."""
        return self.models.model(self.samples) if self.samples else UNKNOWN_SPEED

    @property
    def error(self) -> StepTimeError:
        """The error of the fitted times: the standard error of the fit, from its residuals."""
        return _fit_error(self.step_time, self.samples)

    def step_s(self, slots: tuple[int, ...], batch: int) -> float:
        """Return the time in which `batch` samples are trained, in seconds."""
        workers, hosts = sum(slots), len(slots)
        # The script may set another global batch: then it trains these samples in more or fewer
        # steps.
        step = self.batching.of_all(workers) if self.batching is not None else batch
        step_s = self.step_time.step_s(workers, hosts, step / workers) * batch / step
        if not self.samples:
            return step_s
        near = min(self.samples, key=lambda one: _distance(one, workers, hosts, step))
        return step_s * near.step_s / self.step_time.step_s(near.workers, near.hosts, near.batch)

    def efficiency(self, batch: int) -> float:
        """Return the progress of a sample in a global batch of `batch`, over the smallest one."""
        if self.noise_scale is None or self.noise_scale == float("inf"):
            return 1.0
        return (self.noise_scale + self.smallest_batch) / (self.noise_scale + batch)

    def steps_left(self, batch: int) -> float:
        """Return how many times the job will train `batch` samples until it ends."""
        if self.left is not None:
            return self.left / batch
        return self.left_slot_s / self.fewest / self.step_s((self.fewest,), batch)


def live_model(job: JobView, now_s: float, models: StepTimeModels | None = None) -> LiveModel:
    """Return the model of a live job's speed and remaining work, from what is known of both."""
    models = models or StepTimeModels()
    measured, hints = job.measured, job.manifest.hints
    batch, batching = batch_of(job), batching_of(job)
    samples = speed_samples(measured, hints, batching)
    left = measured.left
    if left is None and hints.steps is not None:
        left = max(0.0, float(hints.steps - measured.done_steps)) * batch
    limit = job.manifest.batch
    models.add(samples)
    return LiveModel(
        samples=samples,
        left=left,
        left_slot_s=_left_slot_s(job, now_s),
        fewest=job.min_slots,
        noise_scale=measured.noise_scale,
        smallest_batch=limit.min if limit is not None else batch,
        batching=batching if limit is None else None,
        models=models,
    )


def is_measured(job: JobView) -> bool:
    """Return whether the speed of `job` is measured, and what is left of it is known."""
    measured, hints = job.measured, job.manifest.hints
    left = measured.left is not None or hints.steps is not None
    speed = bool(measured.steps or measured.curve or hints.samples_per_s)
    return (left and speed) or hints.duration_s is not None


def batch_of(job: JobView) -> int:
    """Return the global batch of `job` now, in samples; at least 1."""
    limit = job.manifest.batch
    return job.measured.global_batch or (limit.min if limit else job.manifest.requested_np)


def batching_of(job: JobView) -> Batching:
    """Return the batch sizes of `job`, which tell the global batch for each number of workers."""
    if job.manifest.batch is not None:
        return Batching(global_batch=batch_of(job))
    steps = job.measured.steps
    # A script that reads its own data: as many samples of a worker as were measured last.
    return job.measured.batching or Batching(max(1, round(steps[-1].batch)) if steps else 1)


def speed_samples(
    measured: JobMeasurements, hints: JobHints, batching: Batching
) -> tuple[StepTimeSample, ...]:
    """Return all known step times of a job: measured ones, then those of curves."""
    return tuple(one for one, _ in sourced_samples(measured, hints, batching))


class ThroughputSource(StrEnum):
    """The source of a job's known throughput with one number of workers."""

    MEASURED = "measured"  # by the job itself, in this run or a former one
    FORMER_JOB = "former job"  # by a job that had the name before
    SUPPLIED = "supplied"  # by its manifest
    ASSUMED = "assumed"  # by the model of a step's time


def sourced_samples(
    measured: JobMeasurements, hints: JobHints, batching: Batching
) -> tuple[tuple[StepTimeSample, ThroughputSource], ...]:
    """Return the known step times of a job as `speed_samples` does, each with its source."""
    found = [(one, ThroughputSource.MEASURED) for one in measured.steps]
    for curve, source in (
        (measured.curve, ThroughputSource.FORMER_JOB),
        (hints.samples_per_s, ThroughputSource.SUPPLIED),
    ):
        known = {one.workers for one, _ in found}
        for np, rate in sorted(curve.items()):
            if np not in known and np > 0 and rate > 0:
                batch = batching.of_all(np)
                found.append((StepTimeSample(np, 1, batch / np, batch / rate), source))
    return tuple(found)


class StepTimeModels:
    """A cache that fits the models of the step times of several jobs together."""

    def __init__(self) -> None:
        self._added: dict[tuple[StepTimeSample, ...], None] = {}

    def add(self, samples: tuple[StepTimeSample, ...]) -> None:
        """Let the model of `samples` be fitted with the others."""
        self._added[samples] = None

    def model(self, samples: tuple[StepTimeSample, ...]) -> StepTime:
        """Return the model of a step's time that fits `samples` best, at least one step time."""
        # Each mean of a job differs a little from its last one: rounded, most models are known.
        key = _rounded(samples)
        found = _FITTED.get(key)
        if found is None:
            asked = dict.fromkeys(_rounded(one) for one in (*self._added, samples) if one)
            new = [one for one in asked if one not in _FITTED]
            fitted = dict(zip(new, fit_all(new), strict=True))
            self._added = {}
            found = fitted[key]
            _keep(fitted)
        return found


_FITTED: dict[tuple[StepTimeSample, ...], StepTime] = {}


def _keep(fitted: Mapping[tuple[StepTimeSample, ...], StepTime]) -> None:
    """Keep fitted models, by the rounded samples; if they are too many, without the older half."""
    _FITTED.update(fitted)
    if len(_FITTED) > FITTED:
        for key in list(_FITTED)[: FITTED // 2]:
            _FITTED.pop(key, None)


@lru_cache(maxsize=FITTED)
def _rounded(samples: tuple[StepTimeSample, ...]) -> tuple[StepTimeSample, ...]:
    """Return `samples` with times and batches rounded to powers of 1.01."""
    return tuple(
        StepTimeSample(
            one.workers,
            one.hosts,
            one.batch if float(one.batch).is_integer() else _rounded_value(one.batch),
            _rounded_value(one.step_s),
        )
        for one in samples
    )


def _rounded_value(value: float) -> float:
    return math.exp(round(math.log(value) / ROUNDED_TO) * ROUNDED_TO)


@lru_cache(maxsize=4096)
def _fit_error(step_time: StepTime, samples: tuple[StepTimeSample, ...]) -> StepTimeError:
    free = len(samples) - step_time.fitted
    if free <= 0:
        return EXACT
    residuals = [
        math.log(one.step_s / step_time.step_s(one.workers, one.hosts, one.batch))
        for one in samples
    ]
    return StepTimeError(math.sqrt(sum(one * one for one in residuals) / free), len(samples))


def _distance(one: StepTimeSample, workers: int, hosts: int, batch: int) -> tuple[float, ...]:
    return abs(one.workers - workers), abs(one.hosts - hosts), abs(one.batch - batch / workers)


def _left_slot_s(job: JobView, now_s: float) -> float:
    """Return the estimated slot-seconds that a job of unknown length has left at `now_s`."""
    attained, hints = job.life.attained_s(now_s), job.manifest.hints
    if hints.duration_s is not None:
        whole = hints.duration_s * job.manifest.requested_np
        return max(whole - attained, LEAST_LEFT_S)
    return max(attained, LEAST_SERVICE_S * job.min_slots)
