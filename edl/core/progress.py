"""Define the records of a job's progress, as a worker counts it and as the leader reports it.

:class:`WorkerProgress` is a worker's, :class:`TrainingStatus` the leader's. Fields that both have
are declared in their base :class:`JobProgress`. Each field is explained in its annotation. `make
docs` generates the table of `edl status --json` from this module and from :mod:`edl.core.status`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any

from edl.core.record import Record


@dataclass(frozen=True, kw_only=True)
class JobProgress(Record):
    """The progress of a job: steps, epoch, samples, slowest worker, noise scale and global batch.

    All workers of the ring count the same values, except ``median_step_s``, which is that worker's.
    Each field is explained in its annotation. Objects are made of the subclasses.
    """

    step: Annotated[int, "complete steps"] = 0
    epoch: Annotated[int, "counted from 0"] = 0
    epoch_done: Annotated[int, "samples of this epoch that are trained"] = 0
    epoch_total: Annotated[
        int, "samples of an epoch; 0: of a stream, or the script keeps its own place in its data"
    ] = 0
    untrained: Annotated[
        int,
        "samples that were not trained because the script's loop left an epoch before its end; "
        "those of a stream are not counted",
    ] = 0
    left: Annotated[
        float | None, "samples to train until the end of the job; null: nobody knows"
    ] = None
    median_step_s: Annotated[float, "of the last 50 steps of one worker"] = 0.0
    slowest: Annotated[
        str | None, "worker that computes at least twice as long in a step as the others do"
    ] = None
    slowest_s: Annotated[float, "what it computes in a step, the median of its last ones"] = 0.0
    others_s: Annotated[float, "what the others do, the median of theirs"] = 0.0
    noise_scale: Annotated[
        float | None,
        "samples: up to a global batch of so many a larger one is worth it "
        "([the gradient noise scale](../guides/batch-and-learning-rate.md#how-large-a-batch)); "
        "null: nobody can say",
    ] = None
    noise_is_biased: Annotated[bool, "it was measured by a single worker"] = False
    global_batch: Annotated[
        int, "samples of a batch of all workers together; 0: the script reads its own data"
    ] = 0


@dataclass(frozen=True)
class ProgressSample(Record):
    """The counters of one worker at the end of a step; the difference of two gives a throughput."""

    worker: int
    generation: int
    size: int  # of its ring
    epoch: int  # from 0
    step: int  # complete steps of the job
    samples: int  # that all workers have trained since this worker joined
    at_s: float  # when the step ended, by a monotonic clock of this worker alone


@dataclass(frozen=True, kw_only=True)
class WorkerProgress(JobProgress):
    """The progress that one worker reports at the end of each step."""

    generation: int = 0  # 0: it has not been in a ring
    size: int = 0  # of its ring
    samples_total: int = 0  # that all workers have trained since this worker joined
    # When the step ended, by the worker's monotonic clock: other processes get it unchanged, and
    # may only subtract it from that of another step of this worker.
    counted_at: float = 0.0
    # The same by the clock of the process that holds this object; `for_others` replaces it.
    updated_at: float = 0.0

    @property
    def trains(self) -> bool:
        """Whether the worker has completed a step in its ring."""
        return self.generation > 0 and (self.median_step_s > 0 or self.samples_total > 0)

    def for_others(self, now_s: float) -> dict[str, Any]:
        """Return the progress as JSON values for other processes, whose clocks differ."""
        values = self.to_json()
        return values | {"quiet_s": round(now_s - values.pop("updated_at"), 3)}

    def sample(self, worker: int) -> ProgressSample:
        return ProgressSample(
            worker=worker,
            generation=self.generation,
            size=self.size,
            epoch=self.epoch,
            step=self.step,
            samples=self.samples_total,
            at_s=self.counted_at,
        )


def is_status_due(
    progress: WorkerProgress, told_generation: int, passed_s: float, period_s: float
) -> bool:
    """Return whether the leader writes the status now: in each period, and for a new ring."""
    # By that a cluster knows that the job has started, and in a large one the period is long.
    begins = progress.trains and progress.generation != told_generation
    return begins or passed_s >= period_s


@dataclass(frozen=True, kw_only=True)
class TrainingStatus(JobProgress):
    """The record at ZooKeeper's node ``status``: a job's progress as its leader reports it.

    The leader overwrites this record. It also says what the leader does or waits for (``reason``).
    Each field is explained in its annotation, here or in :class:`JobProgress`. `edl status` shows a
    :class:`edl.core.status.JobStatus`, which has the fields of this record and more.
    """

    samples_per_s: Annotated[float, "of all workers together, over the last 3 s"] = 0.0
    quiet_s: Annotated[float, "since the last complete step, at `updated_at_s`"] = 0.0
    progress_sample: Annotated[
        ProgressSample | None,
        "counters of one worker at the end of a step, for `edl profile`; null: no worker of a ring "
        "has answered",
    ] = None
    reason: Annotated[
        str,
        "of the state; while it runs, what the leader does or waits for, or who holds the job up",
    ] = ""
    policy: Annotated[str, "what the job's policy says of its size; empty: it has none"] = ""
    updated_at_s: Annotated[
        float,
        "when the leader wrote step, epoch and rates, in seconds since 1970: every "
        "`status_period_s`, and when a new ring has trained; 0: never",
    ] = 0.0

    @classmethod
    def of(cls, progress: JobProgress, **more: Any) -> TrainingStatus:
        """Return the status of a job that has made ``progress``.

        The fields of :class:`JobProgress` are copied; those of a subclass are not. ``more`` has the
        values of the other fields by name, such as ``reason``; a field that is not in it has its
        default.
        """
        counted = {field.name: getattr(progress, field.name) for field in fields(JobProgress)}
        return cls(**counted, **more)
