"""What is kept of a run: a few numbers, so that a thousand runs fit into memory and onto disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.published.jsa_workload import UNTIL_S
from edl.simulator.runs import RunOutcome


@dataclass(frozen=True)
class Summary:
    """Of one run.

    Attributes:
        offered: how many jobs were submitted.
        completed: how many ended within JSA's hours of arrivals.
        jcts_s: completion time of each job that was not turned away, by its name.
        worst_fairness: the largest finish-time fairness (:mod:`edl.simulator.results`).
        took_s: to compute.
        p90_fairness: the finish-time fairness that 90 % of the jobs do not exceed.
        unfair: the part of the jobs whose finish-time fairness is above 1.
        most_resizes: the most of a job.
    """

    offered: int
    completed: int
    jcts_s: Mapping[str, float]
    makespan_s: float
    worst_fairness: float
    resizes: int
    took_s: float
    p90_fairness: float = 0.0
    unfair: float = 0.0
    most_resizes: int = 0

    @property
    def mean_jct_s(self) -> float:
        """Mean completion time."""
        return fmean(self.jcts_s.values())

    @property
    def p99_jct_s(self) -> float:
        """Completion time that 99 % of the jobs do not exceed."""
        return float(np.percentile(list(self.jcts_s.values()), 99))

    def figures(self) -> dict[str, Any]:
        """For JSON; ``Summary(**figures)`` is the same again."""
        return asdict(self)


def summary(outcome: RunOutcome) -> Summary:
    """Return the numbers that are kept of one run."""
    result = outcome.result
    fairness = [job.finish_time_fairness for job in result.ended]
    return Summary(
        offered=len(result.jobs),
        completed=sum(1 for job in result.ended if job.end_s <= UNTIL_S),
        jcts_s={job.name: job.jct_s for job in result.ended},
        makespan_s=result.makespan_s,
        worst_fairness=result.worst_finish_time_fairness,
        resizes=sum(job.resizes for job in result.jobs),
        took_s=outcome.took_s,
        p90_fairness=float(np.percentile(fairness, 90)),
        unfair=fmean(one > 1 for one in fairness),
        most_resizes=max(job.resizes for job in result.jobs),
    )
