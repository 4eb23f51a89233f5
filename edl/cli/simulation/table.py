"""Format the results of `edl simulate`: as a table for people, or as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from rich import box
from rich.table import Table

from edl.errors import some
from edl.simulator.built_in import JSA, MIX, POLLUX, SETS, TRACE
from edl.simulator.published.pollux_answers import JctComparison
from edl.simulator.registry import POLICIES
from edl.simulator.results import Result, levels
from edl.simulator.runs import RunOutcome, SimulatedRun

Done = tuple[RunOutcome, JctComparison | None]
"""A run that has ended, and how it compares with the published one, if it was to be compared."""

NARROW = (0, 0)  # so that a row fits into 80 columns
SUMMED = ("p50 s", "p99 s", "worst ρ", "span h", "resizes")
COMPARED = ("published", "same second", "took s")
LABELS = {
    POLLUX: ("load", "workload"),
    JSA: ("arrivals", "seed"),
    MIX: ("arrivals", "seed"),
}


def figures(outcome: RunOutcome, comparison: JctComparison | None, history: bool) -> dict[str, Any]:
    """Return one run as a dictionary of JSON values: policy, cluster, summary, and every job."""
    run = outcome.run
    about: dict[str, Any] = {"policy": run.policy, "nodes": run.nodes, "slots": run.slots}
    if run.load:
        about |= dict(zip(LABELS[run.built_in], (run.load, run.workload), strict=True))
    about["interval_s"] = run.rules.interval_s
    if comparison is not None:
        about["published"] = {
            "mean_jct_s": comparison.published_mean_jct_s,
            "matches": comparison.matches,
            "differing": [
                {"name": name, "jct_s": ours, "published_jct_s": theirs}
                for name, ours, theirs in comparison.differing
            ],
        }
    if history:
        about["over_time"] = [level.figures() for level in levels(outcome.result)]
    return about | outcome.result.figures(history)


def results_table(done: Sequence[Done]) -> Table:
    """Return a table with a row for each run, and a row for all runs of one policy at one load."""
    groups: dict[tuple[str, str], list[Done]] = {}
    for outcome, comparison in done:
        groups.setdefault((outcome.run.policy, outcome.run.load), []).append((outcome, comparison))
    compared = any(comparison for group in groups.values() for _, comparison in group)
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=NARROW)
    labels = {LABELS.get(run.built_in, ("", "")) for run in (one[0].run for one in done)}
    for column in ("policy", *labels.pop()):
        shown.add_column(column, no_wrap=True)
    for column in ("jobs", "mean s", *(COMPARED if compared else SUMMED)):
        shown.add_column(column, no_wrap=True, justify="right")
    for (name, load), group in groups.items():
        for one in group:
            shown.add_row(name, load, str(one[0].run.workload) if load else "", *_cells([one]))
        if len(group) > 1:
            shown.add_row(name, load, "all", *_cells(group))
        shown.add_section()
    return shown


def _cells(group: Sequence[Done]) -> list[str]:
    """Return the number cells, as text from left to right, of a row that sums up `group`."""
    results = [outcome.result for outcome, _ in group]
    jobs = sum(len(result.jobs) for result in results)
    ended = sum(len(result.ended) for result in results)
    count = str(jobs) if ended == jobs else f"{ended}/{jobs}"
    known = [comparison for _, comparison in group if comparison is not None]
    if known:
        return [
            count,
            f"{fmean(result.mean_jct_s for result in results):.1f}",
            f"{fmean(one.published_mean_jct_s for one in known):.1f}",
            f"{sum(one.matches for one in known)}/{jobs}",
            f"{sum(outcome.took_s for outcome, _ in group):.1f}",
        ]
    defined = [result for result in results if result.ended]
    means = _means(defined) if defined else ["-"] * 5
    return [count, *means, str(sum(job.resizes for result in results for job in result.jobs))]


def _means(results: Sequence[Result]) -> list[str]:
    """Return the five cells "mean s" to "span h" of a row that sums up `results`."""
    return [
        f"{fmean(result.mean_jct_s for result in results):.0f}",
        f"{fmean(result.jct_percentile_s(50) for result in results):.0f}",
        f"{fmean(result.jct_percentile_s(99) for result in results):.0f}",
        f"{max(result.worst_finish_time_fairness for result in results):.2f}",
        f"{fmean(result.makespan_s for result in results) / 3600:.1f}",
    ]


def difference(run: SimulatedRun, comparison: JctComparison) -> str:
    """Return a text about the jobs whose completion time is not the published one."""
    names = [
        f"{name} {ours:g} s, published {theirs:g} s" for name, ours, theirs in comparison.differing
    ]
    return f"{run.title}: {some(names)}"


def catalogue() -> Table:
    """Return the table that `edl simulate --list` prints: built-in sets of jobs, and policies."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=NARROW)
    for column in ("", "name", ""):
        shown.add_column(column)
    for name, built_in in SETS.items():
        shown.add_row("jobs", name, built_in.what)
    shown.add_row("jobs", "--trace FILE.csv", TRACE.what)
    for name, (_, what) in POLICIES.items():
        shown.add_row("policy", name, what)
    return shown
