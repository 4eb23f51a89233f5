"""Declare the metrics that each worker gives at its HTTP port, and return their values.

All are about this one worker, except ``edl_step``, ``edl_steps_total`` and ``edl_samples_total``,
which are about what all workers train together. ``edl_step`` is the job's, the two counters begin
at 0 with each worker. All workers of a ring count at the same rate: take the maximum of the rates
over the workers of a job, not their sum.
"""

from __future__ import annotations

from dataclasses import dataclass

from edl.core.metric import (
    BUILD_INFO,
    ZOOKEEPER_CONNECTED,
    Sample,
    counter,
    gauge,
    histogram,
    info,
)
from edl.core.progress import WorkerProgress
from edl.core.step_totals import StepTotals

WORKER_INFO = info(
    "edl_worker_info",
    "The job, the host and the name of this worker; always 1",
    "edl_job",
    "host",
    "worker",
)
LEADER = gauge("edl_leader", "1 on the worker that leads the job, as it knows, else 0")
WORKER_GENERATION = gauge(
    "edl_worker_generation",
    "Number of the ring in which this worker trains; 0 before its first one",
)
STEP = gauge(
    "edl_step",
    "Steps that the job has completed, as this worker knows; 0 before its first ring",
)
STEPS = counter(
    "edl_steps_total",
    "Steps that this worker has completed together with the others since it joined",
)
SAMPLES = counter(
    "edl_samples_total",
    "Samples that all workers together have trained since this worker joined",
)
STEP_DURATION = histogram(
    "edl_step_duration_seconds",
    "Time of a step on this worker, without the first step in each ring",
)
STEP_PARTS = counter(
    "edl_step_part_seconds_total",
    "Time of all steps on this worker by part: `data` (waiting for its batch), `compute` (its own "
    "work), `reduce` (waiting for the others, and the exchange of gradients)",
    "part",
)
STEP_AGE = gauge(
    "edl_worker_last_step_age_seconds",
    "Time since this worker completed its last step, or since its start",
)

WORKER_METRICS = (
    BUILD_INFO,
    WORKER_INFO,
    LEADER,
    WORKER_GENERATION,
    STEP,
    STEPS,
    SAMPLES,
    STEP_DURATION,
    STEP_PARTS,
    STEP_AGE,
    ZOOKEEPER_CONNECTED,
)


@dataclass(frozen=True)
class WorkerSnapshot:
    """The state of a worker at one moment, from which `worker_samples` makes its metrics."""

    version: str  # of edl
    job: str
    host: str
    worker: str  # "w3"; empty before it is registered
    leads: bool
    connected: bool  # to ZooKeeper
    progress: WorkerProgress
    totals: StepTotals
    now_s: float  # by the clock of `progress.updated_at`


def worker_samples(facts: WorkerSnapshot) -> list[Sample]:
    progress, totals = facts.progress, facts.totals
    return [
        BUILD_INFO(1, facts.version),
        WORKER_INFO(1, facts.job, facts.host, facts.worker),
        LEADER(int(facts.leads)),
        WORKER_GENERATION(progress.generation),
        STEP(progress.step),
        STEPS(totals.steps),
        SAMPLES(progress.samples_total),
        STEP_DURATION(totals.durations),
        STEP_PARTS(totals.data_us / 1e6, "data"),
        STEP_PARTS(totals.compute_us / 1e6, "compute"),
        STEP_PARTS(totals.reduce_us / 1e6, "reduce"),
        STEP_AGE(max(0.0, facts.now_s - progress.updated_at)),
        ZOOKEEPER_CONNECTED(int(facts.connected)),
    ]
