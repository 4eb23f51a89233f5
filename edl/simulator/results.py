"""Hold the result of a simulated run: the times of each job, and their summary.

:func:`edl.simulator.engine.simulate` returns a :class:`Result`, with a :class:`JobResult` a job.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from edl.cluster.state import Placement, slot_count
from edl.simulator.resize import SlotChange


@dataclass(frozen=True)
class AllocationChange:
    """A change of the slots of one job in a simulation."""

    at_s: float  # the time of the change, in seconds; in a `JobResult` on the clock of the trace
    change: SlotChange  # the kind of change
    # the slots of the job from then on, as (node, number of slots) pairs; empty: none
    placement: Placement
    reason: str = ""  # the policy's reason; empty if a node failed

    def figures(self) -> dict[str, Any]:
        """Return the change as a dictionary that can be written as JSON."""
        return {
            "at_s": self.at_s,
            "change": self.change.value,
            "slots": slot_count(self.placement),
            "placement": dict(self.placement),
            "reason": self.reason,
        }


@dataclass(frozen=True)
class BatchChange:
    """A change of a job's global batch."""

    at_s: float  # the time of the change, in seconds; in a `JobResult` on the clock of the trace
    batch: int  # the global batch from then on, in samples

    def figures(self) -> dict[str, Any]:
        """Return the fields of the change by name, as a dictionary that can be written as JSON."""
        return {"at_s": self.at_s, "batch": self.batch}


@dataclass(frozen=True)
class JobResult:
    """The result of a job that has ended or was rejected, with times on the clock of the trace."""

    name: str
    kind: str  # the kind of job, as it was submitted
    arrival_s: float  # the time at which it was submitted
    start_s: float  # the time at which it was given its first slots; `end_s` if it was rejected
    end_s: float  # the time at which it ended, or was rejected
    # the seconds during which it had slots, times the number of slots; the time that changes of
    # slots took is included
    slot_s: float
    # all changes of its slots, its first slots included, in order of time
    history: tuple[AllocationChange, ...] = ()
    # all changes of its batch, in order of time; the batch that its user requested, with which it
    # begins, is not among them
    batches: tuple[BatchChange, ...] = ()
    dropped: bool = False  # whether it was rejected, at `end_s`, without ever having had slots
    # the seconds that it would take alone on 1/N of the slots, N being the mean number of jobs in
    # the cluster while it was there, itself included (`fairness`); 0: not known, as for a rejected
    # job
    isolated_s: float = 0.0

    @property
    def jct_s(self) -> float:
        """The job completion time (JCT): the seconds from the job's submission to `end_s`."""
        return self.end_s - self.arrival_s

    def later(self, seconds: float) -> JobResult:
        """Return a copy of this result in which all points in time are `seconds` later."""
        if not seconds:
            return self
        return replace(
            self,
            arrival_s=self.arrival_s + seconds,
            start_s=self.start_s + seconds,
            end_s=self.end_s + seconds,
            history=tuple(replace(one, at_s=one.at_s + seconds) for one in self.history),
            batches=tuple(replace(one, at_s=one.at_s + seconds) for one in self.batches),
        )

    @property
    def finish_time_fairness(self) -> float:
        """The job completion time divided by `isolated_s`, its time alone on a fair share."""
        return self.jct_s / self.isolated_s if self.isolated_s else 0.0

    @property
    def resizes(self) -> int:
        """The number of times that the job was given other slots after its start."""
        given = sum(1 for one in self.history if one.placement)
        return max(0, given - 1)

    def figures(self, history: bool = False) -> dict[str, Any]:
        """Return the job's results as a dictionary that can be written as JSON."""
        shown: dict[str, Any] = {
            "name": self.name,
            "kind": self.kind,
            "arrival_s": self.arrival_s,
            "start_s": self.start_s,
            "end_s": self.end_s,
            "jct_s": self.jct_s,
            "slot_s": self.slot_s,
            "resizes": self.resizes,
            "finish_time_fairness": self.finish_time_fairness,
        }
        if self.dropped:
            shown["dropped"] = True
        if history:
            shown["history"] = [one.figures() for one in self.history]
            shown["batches"] = [one.figures() for one in self.batches]
        return shown


@dataclass(frozen=True)
class Result:
    """The result of a simulated run."""

    jobs: tuple[JobResult, ...]  # the result of each job, in the order in which the jobs were given
    # the number of decisions, including those at which the policy was not asked because no waiting
    # job could start
    decisions: int

    @property
    def ended(self) -> list[JobResult]:
        """The results of the jobs that were not rejected, in the order of `jobs`."""
        return [job for job in self.jobs if not job.dropped]

    @property
    def mean_jct_s(self) -> float:
        """The mean job completion time of the jobs that were not rejected, in seconds."""
        return fmean(job.jct_s for job in self.ended)

    @property
    def makespan_s(self) -> float:
        """The makespan: the seconds from the first submission to the last end of a job."""
        return max(job.end_s for job in self.ended) - min(job.arrival_s for job in self.jobs)

    @property
    def worst_finish_time_fairness(self) -> float:
        """The largest finish-time fairness of the jobs that were not rejected; lower is better."""
        return max(job.finish_time_fairness for job in self.ended)

    def jct_percentile_s(self, percent: float) -> float:
        """Return the completion time that this many percent (0 to 100) of jobs do not exceed."""
        return float(np.percentile([job.jct_s for job in self.ended], percent))

    def figures(self, history: bool = False) -> dict[str, Any]:
        """Return the summary of the run and the results of every job, as a dictionary for JSON."""
        ended = self.ended
        return {
            **{name: of(self) if ended else None for name, of in _OF_ENDED.items()},
            "slot_s": sum(job.slot_s for job in self.jobs),
            "resizes": sum(job.resizes for job in self.jobs),
            "decisions": self.decisions,
            "dropped": len(self.jobs) - len(ended),
            "jobs": [job.figures(history) for job in self.jobs],
        }


_OF_ENDED: dict[str, Callable[[Result], float]] = {  # not defined if all jobs were rejected
    "mean_jct_s": lambda result: result.mean_jct_s,
    "p50_jct_s": lambda result: result.jct_percentile_s(50),
    "p90_jct_s": lambda result: result.jct_percentile_s(90),
    "p99_jct_s": lambda result: result.jct_percentile_s(99),
    "worst_finish_time_fairness": lambda result: result.worst_finish_time_fairness,
    "makespan_s": lambda result: result.makespan_s,
}
