"""All policies on the jobs of each paper: completion time, fairness, edl's own beside each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from benchmarks.adapting import drawing
from benchmarks.page import table
from benchmarks.published.runs import PublishedRun
from benchmarks.scheduling.jobs import on_jsa, on_pollux, on_virtualflow
from benchmarks.scheduling.jsa import JSA
from benchmarks.scheduling.published import SEARCHED, as_published, listed_numbers, percent
from benchmarks.scheduling.scope import OURS, Scope
from benchmarks.scheduling.store import Found, key
from benchmarks.scheduling.summary import Summary
from edl.simulator.figure import figure_of
from edl.simulator.runs import do

FIGURE = "virtualflow-jobs.svg"
DRAWN = ("priority", "virtualflow")
JOBS = {"Pollux": "load", "JSA": "arrivals", "VirtualFlow": "jobs"}
"""What tells the rows of a paper's jobs apart."""


class Standing(NamedTuple):
    """A policy on some jobs: means over the workloads or seeds, and the worst fairness of all."""

    mean_jct_s: float
    p99_jct_s: float
    worst_fairness: float


Trace = Mapping[str, list[PublishedRun]]
"""The runs of each policy."""


def traces(scope: Scope) -> dict[tuple[str, str], Trace]:
    """By whose jobs they are, and which."""
    made: dict[tuple[str, str], Trace] = {}
    general = (*scope.fixed, *scope.elastic)
    known: tuple[str, ...] = (*general, SEARCHED, OURS) if scope.searched else (*general, OURS)
    for load, workloads in scope.workloads.items():
        made["Pollux", load] = {
            name: [on_pollux(name, load, number) for number in workloads] for name in known
        }
    for seeds, known in (
        (scope.seeds, (*general, JSA, OURS)),
        (scope.held_out, (JSA, OURS)),
    ):
        for arrivals in scope.arrivals:
            made["JSA", f"{arrivals}, seeds {listed_numbers(seeds)}"] = {
                name: [on_jsa(name, arrivals, seed, drop=False) for seed in seeds] for name in known
            }
    policies = ("priority", *general, OURS)
    made["VirtualFlow", "20"] = {name: [on_virtualflow(name)] for name in policies}
    return made


def runs(scope: Scope) -> Iterator[PublishedRun]:
    """Of all traces."""
    for trace in traces(scope).values():
        for of in trace.values():
            yield from of


def blocks(scope: Scope, found: Found) -> dict[str, str]:
    """Return a table for the jobs of each paper, and where edl's own policy is not ahead."""
    rows, behind, cases = dict[str, list[list[str]]](), list[str](), 0
    for (whose, jobs), trace in traces(scope).items():
        standings = {name: standing([found[key(run)] for run in of]) for name, of in trace.items()}
        if whose == "Pollux":
            standings[f"{SEARCHED}, as published"] = as_it_was(jobs, scope.workloads[jobs])
        ours = standings.pop(OURS)
        for name, one in [*standings.items(), (OURS, ours)]:
            row = [jobs, name, f"{one.mean_jct_s:.0f}", f"{one.p99_jct_s:.0f}"]
            row.append(f"{one.worst_fairness:.2f}")
            rest = ["", "", ""] if one is ours else beside(ours, one)
            rows.setdefault(whose, []).append(row + rest)
        cases += len(standings)
        for name, one in standings.items():
            behind += [f"- {whose}, {jobs}, {name}: {text}" for text in worse(ours, one)]
    head = ["policy", "mean s", "p99 s", "worst fairness"]
    head += [f"{OURS} beside it: mean", "p99", "worst fairness"]
    if behind:
        listed = "\n".join(behind)
        told = f"`{OURS}` is behind in these of {cases} comparisons:\n\n{listed}"
    else:
        told = f"`{OURS}` is ahead in each of {cases} comparisons, and nowhere worse."
    tables = {f"rivals-{whose.lower()}": table([JOBS[whose], *head], rows[whose]) for whose in rows}
    return tables | {"rivals-behind": told}


def standing(of: Sequence[Summary]) -> Standing:
    """Return the means over several runs of one policy, and its worst fairness."""
    return Standing(
        fmean(one.mean_jct_s for one in of),
        fmean(one.p99_jct_s for one in of),
        max(one.worst_fairness for one in of),
    )


def as_it_was(load: str, workloads: Sequence[int]) -> Standing:
    """Those of the published runs of Pollux."""
    of = [as_published(SEARCHED, load, number) for number in workloads]
    return Standing(
        fmean(one.mean_jct_s for one in of),
        fmean(one.jct_percentile_s(99) for one in of),
        max(one.worst_finish_time_fairness for one in of),
    )


def beside(ours: Standing, other: Standing) -> list[str]:
    """By how much ours is above or below, each in percent."""
    return [percent(one / rival, 0) for one, rival in zip(ours, other, strict=True)]


def worse(ours: Standing, other: Standing) -> list[str]:
    """In which of the three it is worse, and by how much."""
    names = ("mean", "p99", "worst fairness")
    told = [
        f"{name} {percent(one / rival)}"
        for name, one, rival in zip(names, ours, other, strict=True)
        if one > rival
    ]
    return [", ".join(told)] if told else []


def draw(folder: Path) -> None:
    """VirtualFlow's jobs by its two schedulers, as `edl simulate --plot` does it."""
    figure = figure_of([do(on_virtualflow(name)) for name in DRAWN])
    drawing.save(
        figure, folder / FIGURE, "VirtualFlow's 20 jobs, by priority and by weighted shares"
    )
