"""Say what a scheduler outside of edl needs to know of a job's speed: :func:`scheduler_hints`.

The names in :class:`SchedHints` are those of AdaptDL (``adaptdl/sched_hints.py``,
``adaptdl/goodput.py``), whose jobs send the same object to their scheduler, so that one which reads
AdaptDL's jobs reads these. edl's model of a step's time is Pollux', as AdaptDL's is
(:mod:`edl.core.policy.step_time`): the parameters are the same under other names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from edl.core.cluster.live_model import (
    LiveModel,
    ThroughputSource,
    batching_of,
    live_model,
    sourced_samples,
)
from edl.core.cluster.throughput_curve import ThroughputPoint, throughput_curve
from edl.core.cluster.view import JobView
from edl.core.policy.step_time import StepTime
from edl.core.record import Record


@dataclass(frozen=True)
class PerfParams(Record):
    """The model of a step's time; m are the samples of a worker, K the workers."""

    alpha_c: Annotated[float, "the part of the compute time without m, in seconds"]
    beta_c: Annotated[float, "seconds of computing for each of m"]
    alpha_n: Annotated[float, "seconds of the reduction between two workers on two hosts"]
    beta_n: Annotated[float, "what each further one of K adds to that"]
    alpha_r: Annotated[float, "seconds of the reduction between two workers on one host"]
    beta_r: Annotated[float, "what each further one of K adds to that"]
    gamma: Annotated[float, "how far both overlap: from 1, not at all, to 10, entirely"]


@dataclass(frozen=True)
class GradParams(Record):
    """The noise of the gradients, of which only the ratio of the two numbers is known."""

    norm: Annotated[float, "the squared norm of the gradient, as 1"]
    var: Annotated[float, "the variance of a gradient of `initBatchSize` samples, over `norm`"]


@dataclass(frozen=True)
class SchedHints(Record):
    """What AdaptDL's jobs tell their scheduler; each field says its meaning."""

    initBatchSize: Annotated[int, "smallest global batch, in samples"]
    localBszBounds: Annotated[
        tuple[int, int] | None, "smallest and largest batch of a worker; null: edl knows no bounds"
    ]
    globalBatchSize: Annotated[int | None, "global batch now; null: not known"]
    maxBatchSize: Annotated[
        int | None, "largest global batch that a scheduler may choose; null: it may choose none"
    ]
    maxProfiledReplicas: Annotated[int, "most workers with which it was measured; 0: never"]
    gradientAccumulation: Annotated[
        bool, "whether a scheduler may count on it for larger batches: false"
    ]
    gradParams: Annotated[GradParams | None, "the noise of the gradients; null: not known"]
    perfParams: Annotated[PerfParams | None, "the model of a step's time; null: nothing is known"]


@dataclass(frozen=True)
class SchedulerHints(Record):
    """What is known of a job for a scheduler outside of edl; each field says its meaning."""

    job: Annotated[str, "name of the job"]
    min: Annotated[int, "never fewer workers"]
    max: Annotated[int | None, "never more workers; null: no limit"]
    sizes: Annotated[tuple[int, ...], "the only numbers of workers that it may have; empty: any"]
    np: Annotated[int, "how many workers it asks for"]
    noise_scale: Annotated[float | None, "gradient noise scale, in samples; null: not known"]
    samples_left: Annotated[float | None, "samples to train until its end; null: not known"]
    throughput: Annotated[tuple[ThroughputPoint, ...], "how fast it trains with how many workers"]
    sched_hints: Annotated[SchedHints, "the same in the words of AdaptDL"]


def scheduler_hints(job: JobView, now_s: float) -> SchedulerHints:
    """Return what is known of `job` for a scheduler outside of edl."""
    sizes, model, measured = job.manifest.allowed_sizes, live_model(job, now_s), job.measured
    noise = measured.noise_scale
    return SchedulerHints(
        job=job.name,
        min=job.min_slots,
        max=sizes.max_np,
        sizes=tuple(sizes.sizes),
        np=job.manifest.requested_np,
        noise_scale=noise if noise is not None and math.isfinite(noise) else None,
        samples_left=model.left,
        throughput=throughput_curve(job, job.life.slots, now_s),
        sched_hints=_sched_hints(job, model),
    )


def _sched_hints(job: JobView, model: LiveModel) -> SchedHints:
    """Return what AdaptDL's jobs tell their scheduler, of `job` with its `model`."""
    batch, limit = model.smallest_batch, job.manifest.batch
    measured = [
        one.workers
        for one, source in sourced_samples(job.measured, job.manifest.hints, batching_of(job))
        if source is ThroughputSource.MEASURED
    ]
    return SchedHints(
        initBatchSize=batch,
        localBszBounds=None,
        globalBatchSize=job.measured.global_batch or None,
        maxBatchSize=limit.max if limit is not None and limit.set_by_policy else None,
        maxProfiledReplicas=max(measured, default=0),
        gradientAccumulation=False,
        gradParams=grad_params(job.measured.noise_scale, batch),
        perfParams=perf_params(model.step_time) if model.samples else None,
    )


def grad_params(noise_scale: float | None, batch: int) -> GradParams | None:
    """Return the noise of the gradients so that AdaptDL's efficiency is edl's."""
    if noise_scale is None or not math.isfinite(noise_scale):
        return None
    # For a batch of s times the smallest one b, AdaptDL's (var + norm) / (var / s + norm) / s is
    # edl's (noise scale + b) / (noise scale + s b) if var / norm is the noise scale over b.
    return GradParams(1.0, noise_scale / batch)


def perf_params(fitted: StepTime) -> PerfParams:
    """Return the parameters of a model of a step's time under the names of AdaptDL."""
    return PerfParams(
        alpha_c=fitted.compute_s,
        beta_c=fitted.each_sample_s,
        alpha_n=fitted.far_reduce_s,
        beta_n=fitted.each_far_worker_s,
        alpha_r=fitted.reduce_s,
        beta_r=fitted.each_worker_s,
        gamma=fitted.overlap,
    )
