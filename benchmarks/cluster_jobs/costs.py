"""Measure what starts and changes of size cost, in a run of short jobs before the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean

from benchmarks.cluster_jobs.live import LiveRun
from benchmarks.cluster_jobs.marks import StepMark
from benchmarks.cluster_jobs.profiling import Profiles
from benchmarks.cluster_jobs.workload import JOBS

POLICY = "max_min"  # equal shares: each arrival and each end changes the sizes of all
SETTLED = 2  # steps after a start: the first one of TensorFlow makes the graph
KINDS = ("start", "prepare", "join", "leave", "end")
LIKE = {"c1": "j1-torch", "c2": "j4-tf", "c3": "j1-torch", "c4": "j4-tf"}
_BY_NAME = {job.name: job for job in JOBS}
SHORT_JOBS = tuple(
    replace(_BY_NAME[LIKE[name]], name=name, steps=steps, arrival_s=arrival_s)
    for name, steps, arrival_s in (
        ("c1", 150, 0.0),
        ("c2", 170, 10.0),
        ("c3", 120, 20.0),
        ("c4", 120, 30.0),
    )
)


@dataclass(frozen=True)
class Costs:
    """Seconds that changes take, on average.

    Attributes:
        start: what a job loses by a start: from the decision until it has trained two steps, less
            the time that these take later.
        prepare: from the decision that a job gets more slots until its new workers are there;
            meanwhile the others train.
        join: for how long the job stops when they come.
        leave: for how long it stops when workers leave.
        end: from its last step until the cluster knows that it has ended.
        counts: how many of each were measured, by the names of the fields above.
    """

    start: float
    prepare: float
    join: float
    leave: float
    end: float
    counts: Mapping[str, int]

    @property
    def resize_s(self) -> float:
        """What the policy `edl` takes a change to cost, in seconds, rounded to 0.1.

        It is the mean stop and, as new slots train nothing before their workers are there, half of
        the time to prepare.
        """
        return max(0.1, round((self.prepare + self.join + self.leave) / 2, 1))


def short_profiles(profiles: Profiles) -> Profiles:
    """Return the step times of the short jobs, which are those of the jobs that they are like."""
    return {name: profiles[like] for name, like in LIKE.items()}


def costs_of(run: LiveRun, profiles: Profiles) -> Costs:
    """Return the mean costs in a run.

    Args:
        run: the run, in which each kind of change occurred.
        profiles: the step times of its jobs.
    """
    found: dict[str, list[float]] = {name: [] for name in KINDS}
    for job in run.jobs:
        marks = [mark._replace(at_s=mark.at_s - run.begin_s) for mark in run.marks[job.name]]
        found["end"].append(job.ended_s - marks[-1].at_s)
        changes = [*job.targets, (job.ended_s, 0)]
        pairs = zip(changes, changes[1:], changes[2:], strict=False)
        for (_, before), (at_s, after), (next_s, _) in pairs:
            if not after:
                continue
            within = [mark for mark in marks if mark.at_s < next_s]
            if not before:
                costs = _of_start(within, at_s, after, profiles[job.name])
            else:
                costs = _of_change(within, at_s, after, profiles[job.name])
            for name, seconds in costs.items():
                found[name].append(seconds)
    means = {name: max(0.0, fmean(each)) if each else 0.0 for name, each in found.items()}
    return Costs(**means, counts={name: len(each) for name, each in found.items()})


def _of_start(
    marks: Sequence[StepMark], at_s: float, workers: int, step_s: Mapping[int, float]
) -> dict[str, float]:
    """Return the cost of a start; empty if the job has not trained two steps after it.

    Args:
        marks: the steps of the job up to the next decision about it, in order of time.
        at_s: the time of the decision.
        workers: the number of workers by the decision.
        step_s: the seconds of a step by number of workers.
    """
    trained = [mark for mark in marks if mark.at_s > at_s and mark.workers == workers]
    if len(trained) <= SETTLED:
        return {}
    return {"start": trained[SETTLED].at_s - at_s - SETTLED * step_s[workers]}


def _of_change(
    marks: Sequence[StepMark], at_s: float, workers: int, step_s: Mapping[int, float]
) -> dict[str, float]:
    """Return the costs of a change of size; empty if the job never had that size.

    The arguments are those of :func:`_of_start`.
    """
    for before, there in pairwise(marks):
        if there.at_s > at_s and there.workers == workers != before.workers:
            stop_s = there.at_s - before.at_s - step_s[before.workers]
            if workers < before.workers:
                return {"leave": stop_s}
            return {"prepare": there.at_s - stop_s - at_s, "join": stop_s}
    return {}
