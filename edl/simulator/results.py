"""What a simulated run came to: each job's times, and their summary."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from edl.core.cluster.state import Placement, size
from edl.simulator.resize import Change


@dataclass(frozen=True)
class AllocationChange:
    """A change of a job's slots.

    Attributes:
        at_s: virtual time.
        placement: from then on.
        reason: the policy's; empty where a node failed.
    """

    at_s: float
    change: Change
    placement: Placement
    reason: str = ""

    def figures(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "at_s": self.at_s,
            "change": self.change.value,
            "slots": size(self.placement),
            "placement": dict(self.placement),
            "reason": self.reason,
        }


@dataclass(frozen=True)
class BatchChange:
    """A change of a job's batch.

    Attributes:
        at_s: virtual time.
        batch: samples of a step from then on.
    """

    at_s: float
    batch: int

    def figures(self) -> dict[str, Any]:
        """For JSON."""
        return {"at_s": self.at_s, "batch": self.batch}


@dataclass(frozen=True)
class JobResult:
    """A job that has ended; its times are virtual, in seconds on the clock of the trace.

    Attributes:
        start_s: when it first had slots.
        slot_s: seconds that it had slots, times the slots.
        history: all changes of its slots.
        batches: all changes of its batch, which began as submitted.
        dropped: it was turned away at ``end_s``, and never had slots.
        isolated_s: what it would take on its part of the cluster (:mod:`edl.simulator.fairness`);
            0: not known.
    """

    name: str
    kind: str
    arrival_s: float
    start_s: float
    end_s: float
    slot_s: float
    history: tuple[AllocationChange, ...] = ()
    batches: tuple[BatchChange, ...] = ()
    dropped: bool = False
    isolated_s: float = 0.0

    @property
    def jct_s(self) -> float:
        """Job completion time: from its submission to its end."""
        return self.end_s - self.arrival_s

    def later(self, seconds: float) -> JobResult:
        """Return the same result on a clock that shows ``seconds`` more."""
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
        """Its completion time beside the isolated one; 0: that is not known."""
        return self.jct_s / self.isolated_s if self.isolated_s else 0.0

    @property
    def resizes(self) -> int:
        """How often it was given other slots after it had started."""
        given = sum(1 for one in self.history if one.placement)
        return max(0, given - 1)

    def figures(self, history: bool = False) -> dict[str, Any]:
        """For JSON."""
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
    """A run: all jobs, in the order of submission, and how often the policy was asked."""

    jobs: tuple[JobResult, ...]
    decisions: int

    @property
    def ended(self) -> list[JobResult]:
        """Those that were not turned away: the times below are theirs."""
        return [job for job in self.jobs if not job.dropped]

    @property
    def mean_jct_s(self) -> float:
        """Mean completion time."""
        return fmean(job.jct_s for job in self.ended)

    @property
    def makespan_s(self) -> float:
        """From the first submission to the last end."""
        return max(job.end_s for job in self.ended) - min(job.arrival_s for job in self.jobs)

    @property
    def worst_finish_time_fairness(self) -> float:
        """The largest of all jobs: that of the one that was treated worst."""
        return max(job.finish_time_fairness for job in self.ended)

    def jct_percentile_s(self, percent: float) -> float:
        """Completion time that so many percent of the jobs do not exceed, linear between two."""
        return float(np.percentile([job.jct_s for job in self.ended], percent))

    def figures(self, history: bool = False) -> dict[str, Any]:
        """For JSON: the summary, then every job."""
        return {
            "mean_jct_s": self.mean_jct_s,
            "p50_jct_s": self.jct_percentile_s(50),
            "p90_jct_s": self.jct_percentile_s(90),
            "p99_jct_s": self.jct_percentile_s(99),
            "worst_finish_time_fairness": self.worst_finish_time_fairness,
            "makespan_s": self.makespan_s,
            "slot_s": sum(job.slot_s for job in self.jobs),
            "resizes": sum(job.resizes for job in self.jobs),
            "decisions": self.decisions,
            "dropped": len(self.jobs) - len(self.ended),
            "jobs": [job.figures(history) for job in self.jobs],
        }
