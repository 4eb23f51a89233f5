"""All policies on the jobs of each paper: completion time, fairness, edl's own beside each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from benchmarks.adapting import drawing
from benchmarks.page import table
from benchmarks.scheduling.jobs import on_jsa, on_pollux, on_virtualflow
from benchmarks.scheduling.published import SEARCHED, listed_numbers, percent
from benchmarks.scheduling.scope import OURS, Scope
from benchmarks.scheduling.store import Found, key
from edl.cli.simulation_figure import figure_of
from edl.simulator.runs import Run, do

FIGURE = "virtualflow-jobs.svg"
DRAWN = ("priority", "virtualflow")


class Standing(NamedTuple):
    """A policy on some jobs: means over the workloads or seeds, and the worst fairness of all."""

    mean_jct_s: float
    p99_jct_s: float
    worst_fairness: float


Trace = Mapping[str, list[Run]]
"""The runs of each policy."""


def traces(scope: Scope) -> dict[tuple[str, str], Trace]:
    """By whose jobs they are, and which."""
    made: dict[tuple[str, str], Trace] = {}
    general = (*scope.fixed, *scope.elastic)
    for load, workloads in scope.compared.items():
        searched = scope.searched.get(load, ())
        if searched != workloads:
            made |= _of_pollux(load, workloads, (*general, OURS))
        if searched:
            made |= _of_pollux(load, searched, (*general, SEARCHED, OURS))
    for arrivals in scope.arrivals:
        policies = (*general, "jsa", OURS)
        title = f"arrivals {arrivals}, seeds {listed_numbers(scope.seeds)}"
        made["JSA", title] = {
            name: [on_jsa(name, arrivals, seed, drop=False) for seed in scope.seeds]
            for name in policies
        }
    policies = ("priority", *general, OURS)
    made["VirtualFlow", "20 jobs"] = {name: [on_virtualflow(name)] for name in policies}
    return made


def _of_pollux(
    load: str, workloads: tuple[int, ...], policies: Sequence[str]
) -> dict[tuple[str, str], Trace]:
    which = f"load {load}, workload{'s'[: len(workloads) - 1]} {listed_numbers(workloads)}"
    return {
        ("Pollux", which): {
            name: [on_pollux(name, load, number) for number in workloads] for name in policies
        }
    }


def runs(scope: Scope) -> Iterator[Run]:
    """Of all traces."""
    for trace in traces(scope).values():
        for of in trace.values():
            yield from of


def blocks(scope: Scope, found: Found) -> dict[str, str]:
    """A table for all, and in words where edl's own policy is not ahead."""
    rows, behind, cases = [], list[str](), 0
    for (whose, which), trace in traces(scope).items():
        standings = {name: standing(of, found) for name, of in trace.items()}
        for name, one in standings.items():
            jobs, against = f"{whose}, {which}", name != OURS
            row = [jobs, name, f"{one.mean_jct_s:.0f}", f"{one.p99_jct_s:.0f}"]
            row.append(f"{one.worst_fairness:.2f}")
            rows.append(row + (beside(standings[OURS], one) if against else ["", "", ""]))
            if against:
                cases += 1
                behind += [f"- {jobs}, {name}: {text}" for text in worse(standings[OURS], one)]
    head = ["jobs", "policy", "mean s", "p99 s", "worst fairness"]
    head += [f"{OURS} beside it: mean", "p99", "worst fairness"]
    if behind:
        listed = "\n".join(behind)
        told = f"`{OURS}` is behind in these of {cases} comparisons:\n\n{listed}"
    else:
        told = f"`{OURS}` is ahead in each of {cases} comparisons, and nowhere worse."
    return {"rivals": f"{table(head, rows)}\n\n{told}"}


def standing(of: list[Run], found: Found) -> Standing:
    """A policy's numbers."""
    summaries = [found[key(run)] for run in of]
    return Standing(
        fmean(one.mean_jct_s for one in summaries),
        fmean(one.p99_jct_s for one in summaries),
        max(one.worst_fairness for one in summaries),
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
