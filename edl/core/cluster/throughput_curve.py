"""Say how fast a job of a cluster trains with some numbers of workers, and how that is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from edl.core.cluster.live_model import (
    ThroughputSource,
    batch_of,
    batching_of,
    live_model,
    sourced_samples,
)
from edl.core.cluster.view import JobView
from edl.core.record import Record


@dataclass(frozen=True)
class ThroughputPoint(Record):
    """The throughput of a job with one number of workers; each field says its meaning."""

    np: Annotated[int, "number of workers"]
    hosts: Annotated[int, "number of hosts that they are on"]
    samples_per_s: Annotated[
        float | None, "of all together; null: nothing is known of the job's speed"
    ]
    source: Annotated[
        ThroughputSource,
        "`measured` by the job itself, measured by a `former job` of its name, `supplied` by its "
        "manifest, or `assumed` by the model from these",
    ]


def throughput_curve(job: JobView, slots: int, now_s: float) -> tuple[ThroughputPoint, ...]:
    """Return the throughput of `job` with all numbers of workers for which it is known."""
    batch, found = batch_of(job), {}
    for one, source in sourced_samples(job.measured, job.manifest.hints, batching_of(job)):
        measured = one.workers * one.batch / one.step_s
        found[one.workers] = ThroughputPoint(one.workers, one.hosts, measured, source)
    model, sizes = live_model(job, now_s), job.manifest.allowed_sizes
    shown = {job.min_slots, job.manifest.requested_np, sizes.max_np or job.min_slots, slots}
    for np in shown - {0, *found}:
        # Where nothing is known, only the ratio of the assumed ones counts.
        rate = batch / model.step_s((np,), batch) if model.samples else None
        found[np] = ThroughputPoint(np, 1, rate, ThroughputSource.ASSUMED)
    return tuple(found[np] for np in sorted(found))
