"""What is kept of a run: a few numbers, so that a thousand runs fit into memory and onto disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np

from edl.core.cluster.placing import compact
from edl.simulator import jsa, pollux
from edl.simulator.results import Result
from edl.simulator.runs import Outcome
from edl.simulator.work import Submission


@dataclass(frozen=True)
class Summary:
    """Of one run.

    Attributes:
        offered: how many jobs were submitted.
        completed: how many ended within JSA's hours of arrivals.
        jcts_s: completion time of each job that was not turned away, by its name.
        worst_fairness: see :func:`fairness`.
        took_s: to compute.
    """

    offered: int
    completed: int
    jcts_s: Mapping[str, float]
    makespan_s: float
    worst_fairness: float
    resizes: int
    took_s: float

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


def summary(outcome: Outcome) -> Summary:
    """The numbers of one run."""
    run, result = outcome.run, outcome.result
    jobs = run.jobs or pollux.jobs(run.load, run.workload)
    return Summary(
        offered=len(result.jobs),
        completed=sum(1 for job in result.ended if job.end_s <= jsa.UNTIL_S),
        jcts_s={job.name: job.jct_s for job in result.ended},
        makespan_s=result.makespan_s,
        worst_fairness=max(fairness(jobs, result, run.nodes * run.slots, run.slots)),
        resizes=sum(job.resizes for job in result.jobs),
        took_s=outcome.took_s,
    )


def fairness(jobs: Sequence[Submission], result: Result, slots: int, per_node: int) -> list[float]:
    """Finish-time fairness (Themis, NSDI 2020) of each job that ended; above 1 is worse than fair.

    The completion time over what the job would take on its fair share: alone, with the slots that
    its user requests on as few nodes as they fit, as many times longer as slots were requested for
    each slot of the cluster, in the mean over its life (at least 1).
    """
    work = {job.name: job for job in jobs}
    change_at: Counter[float] = Counter()
    for done in result.jobs:
        change_at[done.arrival_s] += work[done.name].requested_slots
        change_at[done.end_s] -= work[done.name].requested_slots
    times = np.array(sorted(change_at))
    demand = np.cumsum([change_at[at_s] for at_s in times])
    slot_s = np.concatenate([[0.0], np.cumsum(demand[:-1] * np.diff(times))])
    found = []
    for done in result.ended:
        begun, over = np.interp([done.arrival_s, done.end_s], times, slot_s)
        contention = max(1.0, float(over - begun) / done.jct_s / slots)
        found.append(done.jct_s / (contention * alone_s(work[done.name], per_node)))
    return found


def alone_s(job: Submission, per_node: int) -> float:
    """Seconds that it takes with the slots and the batch that its user requests."""
    slots, work = compact(job.requested_slots, per_node), job.work
    ends = [0.0, *map(work.end_of, range(work.epochs))]
    return sum(
        (end - before) / work.rate(slots, job.batch, epoch)
        for epoch, (before, end) in enumerate(pairwise(ends))
    )
