"""Keep what the runs of a job have measured, for its later runs and for later jobs of its name.

A run writes what it measures into its own records (:class:`ScalingProfile`), which end with it. So
before the leader of a cluster lets the next run take the place of one, it adds these measurements
to the job's own record, of this module.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from edl.core.cluster.job_life import run_order
from edl.core.cluster.run_records import RunRecords
from edl.core.cluster.view import JobMeasurements
from edl.core.policy.observation import alike
from edl.core.policy.scaling_profile import ScalingProfile
from edl.core.policy.step_time import StepTimeSample
from edl.core.record import Record
from edl.core.step.batching import Batching

MOST_STEPS = 200  # kept of a job, the newest
# The code of a job may write any number. What policies compute with must not overflow, or be 0.
MOST = 1e12  # workers, hosts, samples, steps, samples a second
MOST_WORKERS = 10**6
LEAST = 1e-9  # samples of a worker in a step, samples a second


@dataclass(frozen=True)
class MeasuredThroughput(Record):
    """The record of what former runs have measured, at the node `measured` of a job."""

    # the place in the order of submission of the job that has measured it; -1: none has
    order: int = -1
    # the step times by workers, hosts and batch, the newest at the end
    steps: tuple[StepTimeSample, ...] = ()
    # pairs of a number of workers and the throughput in samples a second that jobs which had the
    # name before have measured with it
    curve: tuple[tuple[int, float], ...] = ()

    def of_job(self, order: int) -> MeasuredThroughput:
        """Return the record for the job that was submitted as number `order`."""
        if order == self.order:
            return self
        # The steps of another job of the name only say how fast the new one may be.
        curve = {**dict(self.curve), **_curve(self.steps)}
        return MeasuredThroughput(order, (), tuple(sorted(curve.items())))

    def with_run(self, run: RunRecords | None) -> MeasuredThroughput:
        """Return a copy of the record, with what `run` has measured added."""
        measured = _samples(run.learned) if run is not None else ()
        if run is not None and run_order(run.token) != self.order:
            curve = {**dict(self.curve), **_curve(measured)}
            return replace(self, curve=tuple(sorted(curve.items())))
        steps = list(self.steps)
        for new in measured:
            steps = [old for old in steps if not _is_same(old, new)] + [new]
        return replace(self, steps=tuple(steps[-MOST_STEPS:]))


def measurements(
    kept: MeasuredThroughput, run: RunRecords | None, order: int
) -> tuple[MeasuredThroughput, JobMeasurements]:
    """Return the record to write before another run replaces `run`, and what policies read."""
    found = kept.of_job(order).with_run(run)
    known = JobMeasurements(steps=found.steps, curve=dict(found.curve))
    if run is None or run_order(run.token) != order:
        return found, known
    status, noise = run.status, run.status.noise_scale
    return found, replace(
        known,
        left=status.left if status.left is not None and 0 <= status.left <= MOST else None,
        done_steps=status.step if 0 <= status.step <= MOST else 0,
        global_batch=status.global_batch if 0 <= status.global_batch <= MOST else 0,
        noise_scale=noise if noise is not None and noise >= 0 else None,
        batching=_batching_of_steps(run.learned),
    )


def _samples(learned: ScalingProfile) -> tuple[StepTimeSample, ...]:
    """Return the throughputs in `learned` as step times, without those that cannot be."""
    return tuple(
        StepTimeSample(workers, one.hosts, one.batch, one.batch * workers / one.samples_per_s)
        for workers, one in learned.by_batch
        if 1 <= workers <= MOST and 1 <= one.hosts <= MOST
        if LEAST <= one.samples_per_s <= MOST and LEAST <= one.batch <= MOST
    )


def _batching_of_steps(learned: ScalingProfile) -> Batching | None:
    """Return the sizes of the batches of a step: of all whose gradients a worker adds up for it."""
    batching, times = learned.batching, learned.step_batches
    if batching is None or not 1 <= times <= MOST:
        return None
    least, most = batching.batch_range
    whole = replace(
        batching,
        batch_size=batching.batch_size * times,
        max_global_batch=batching.max_global_batch * times,
        global_batch=batching.global_batch * times,
        batch_range=(least * times, most * times),
        chosen=batching.chosen * times,
    )
    return whole if 1 <= whole.of_all(1) <= whole.of_all(MOST_WORKERS) <= MOST else None


def _is_same(old: StepTimeSample, new: StepTimeSample) -> bool:
    same = (old.workers, old.hosts) == (new.workers, new.hosts)
    return same and alike(old.batch, new.batch)


def _curve(steps: Iterable[StepTimeSample]) -> dict[int, float]:
    """Return the highest throughput in samples a second among `steps`, by number of workers."""
    found: dict[int, float] = {}
    for one in steps:
        rate = one.workers * one.batch / one.step_s
        found[one.workers] = max(rate, found.get(one.workers, 0.0))
    return found
