"""Pollux' published answers: Tiresias and Optimus job by job, Pollux in the mean."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from statistics import fmean

from benchmarks.page import table
from benchmarks.published.pollux_answers import JctComparison, answers, compare_times
from benchmarks.published.pollux_workload import pollux_jobs
from benchmarks.published.runs import POLLUX, SETS, PublishedRun
from benchmarks.scheduling.jobs import on_pollux
from benchmarks.scheduling.scope import Scope, Workloads
from benchmarks.scheduling.store import Found, key
from edl.simulator.results import JobResult, Result, with_isolated
from edl.simulator.runs import equal_nodes

TO_THE_SECOND = ("tiresias", "optimus")
SEARCHED = "pollux"
MOST_DIFFERING = 5  # jobs that are named


def chosen(scope: Scope) -> dict[str, Workloads]:
    """Policy -> load -> workloads."""
    names = (*TO_THE_SECOND, SEARCHED) if scope.searched else TO_THE_SECOND
    return dict.fromkeys(names, scope.workloads)


def runs(scope: Scope) -> Iterator[PublishedRun]:
    """With an interval of 60 s and 30 s a resize, as they were published."""
    for policy, loads in chosen(scope).items():
        for load, workloads in loads.items():
            yield from (on_pollux(policy, load, number) for number in workloads)


def blocks(scope: Scope, found: Found) -> dict[str, str]:
    """Return the comparison with published runs: a table, and the jobs that differ."""
    rows, differing = [], []
    for policy, loads in chosen(scope).items():
        for load, workloads in loads.items():
            beside = {number: _beside(policy, load, number, found) for number in workloads}
            rows.append([policy, load, listed_numbers(workloads), *_cells(policy, beside)])
            if policy in TO_THE_SECOND:
                differing += [
                    f"- {policy}, load {load}, workload {number}: {name} {ours:g} s, "
                    f"published {theirs:g} s"
                    for number, one in beside.items()
                    for name, ours, theirs in one.differing
                ]
    head = ["policy", "load", "workloads", "jobs", "mean s", "published", "", "single workloads"]
    text = table([*head, "same second"], rows)
    if not differing:
        return {"published": f"{text}\n\nNo job of Tiresias or Optimus ends in another second."}
    more = len(differing) - MOST_DIFFERING
    named = differing[:MOST_DIFFERING] + ([f"- and {more} more"] if more > 0 else [])
    return {"published": "\n".join([text, "", "In another second end:", "", *named])}


def as_published(policy: str, load: str, workload: int) -> Result:
    """Return a published run as a result, with all that follows from when each job ended."""
    jobs, of = pollux_jobs(load, workload), SETS[POLLUX]
    times = answers(policy, load, workload)
    ended = [
        JobResult(job.name, job.kind, job.arrival_s, math.nan, job.arrival_s + times[job.name], 0.0)
        for job in jobs
    ]
    return Result(with_isolated(jobs, ended, equal_nodes(of.nodes, of.slots)), decisions=0)


def _beside(policy: str, load: str, workload: int, found: Found) -> JctComparison:
    one = found[key(on_pollux(policy, load, workload))]
    return compare_times(one.jcts_s, answers(policy, load, workload))


def _cells(policy: str, beside: Mapping[int, JctComparison]) -> list[str]:
    ours = [one.mean_jct_s for one in beside.values()]
    theirs = [one.published_mean_jct_s for one in beside.values()]
    parts = [one / other for one, other in zip(ours, theirs, strict=True)]
    jobs = sum(one.jobs for one in beside.values())
    same = sum(one.matches for one in beside.values())
    near = f"{percent(min(parts))} to {percent(max(parts))}" if len(parts) > 1 else ""
    return [
        f"{jobs:,}",
        f"{fmean(ours):.1f}",
        f"{fmean(theirs):.1f}",
        percent(fmean(ours) / fmean(theirs)),
        near,
        f"{same:,} of {jobs:,}" if policy in TO_THE_SECOND else "",
    ]


def percent(ratio: float, digits: int = 1) -> str:
    """By how much it is above 1, with its sign; 0 has none."""
    value = round((ratio - 1) * 100, digits)
    sign = "+" if value > 0 else "−" if value < 0 else ""
    return f"{sign}{abs(value):.{digits}f} %"


def listed_numbers(numbers: tuple[int, ...]) -> str:
    """As a range where they are one."""
    if len(numbers) > 2 and numbers == tuple(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(map(str, numbers))
