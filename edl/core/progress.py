"""How far the training of a job is: what a worker counts, and what the leader makes known of it.

A field that both have is declared once, in :class:`JobProgress`. `make docs` generates the table of
`edl status --json` from here and from :mod:`edl.core.status`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, Any

from edl.core.record import Record


@dataclass(frozen=True, kw_only=True)
class JobProgress(Record):
    """How far a job is; all workers of its ring count the same."""

    step: Annotated[int, "complete steps"] = 0
    epoch: Annotated[int, "counted from 0"] = 0
    epoch_done: Annotated[int, "samples of this epoch that are trained"] = 0
    epoch_total: Annotated[
        int, "samples of an epoch; 0: of a stream, or the script keeps its own place in its data"
    ] = 0
    untrained: Annotated[
        int,
        "samples of epochs that all workers left before their end, a loop of the script being "
        "shorter than the epoch; those of a stream are not counted",
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
    """The counters of one worker at the end of a step; `edl profile` compares two samples.

    Attributes:
        worker: the number of that worker.
        generation: the generation of its ring.
        size: the number of workers in that ring.
        epoch: the epoch, counted from 0.
        step: the complete steps of the job.
        samples: the samples that all workers have trained since this one joined.
        at_s: when that was, in seconds by a monotonic clock of that worker only.
    """

    worker: int
    generation: int
    size: int
    epoch: int
    step: int
    samples: int
    at_s: float


@dataclass(frozen=True, kw_only=True)
class WorkerProgress(JobProgress):
    """The progress that one worker reports at the end of each step.

    Attributes:
        generation: the generation of its ring; 0: it has not been in a ring.
        size: the number of workers in that ring.
        samples_total: the samples that all workers have trained since this one joined.
        counted_at: when the step ended, in seconds by the clock that the worker counts with.
        updated_at: the same by the monotonic clock of its process.
    """

    generation: int = 0
    size: int = 0
    samples_total: int = 0
    counted_at: float = 0.0
    updated_at: float = 0.0

    def for_others(self, now_s: float) -> dict[str, Any]:
        """Return JSON values for other processes, which have another clock.

        They have ``quiet_s``, the seconds since the end of the step, in place of ``updated_at``.
        """
        values = self.to_json()
        return values | {"quiet_s": round(now_s - values.pop("updated_at"), 3)}

    def sample(self, worker: int) -> ProgressSample:
        """Return what ``worker``, whose progress this is, had counted."""
        return ProgressSample(
            worker=worker,
            generation=self.generation,
            size=self.size,
            epoch=self.epoch,
            step=self.step,
            samples=self.samples_total,
            at_s=self.counted_at,
        )


@dataclass(frozen=True, kw_only=True)
class TrainingStatus(JobProgress):
    """``status``, written by the leader: how far the training is, and what it waits for.

    With what ZooKeeper knows besides, it becomes an :class:`edl.core.status.JobStatus`.
    """

    samples_per_s: Annotated[float, "of all workers together, over the last 3 s"] = 0.0
    quiet_s: Annotated[float, "since the last complete step, at `updated_at_s`"] = 0.0
    progress_sample: Annotated[
        ProgressSample | None,
        "what `edl profile` measures with; null: no worker of a ring has answered",
    ] = None
    reason: Annotated[
        str,
        "of the state; while it runs, what the leader does or waits for, or who holds the job up",
    ] = ""
    policy: Annotated[str, "what the job's policy says of its size; empty: it has none"] = ""
    updated_at_s: Annotated[
        float,
        "when the leader wrote step, epoch and rates, in seconds since 1970; at most every "
        "`status_period_s`; 0: never",
    ] = 0.0

    @classmethod
    def of(cls, progress: JobProgress, **more: Any) -> TrainingStatus:
        """Return the status of a job that has made ``progress``; ``more``: the other fields."""
        counted = {field.name: getattr(progress, field.name) for field in fields(JobProgress)}
        return cls(**counted, **more)
