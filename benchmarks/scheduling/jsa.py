"""JSA's claims: twice as many jobs completed, or a tenth of the completion time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean

from benchmarks.page import table
from benchmarks.published.runs import PublishedRun
from benchmarks.scheduling.jobs import on_jsa
from benchmarks.scheduling.scope import OURS, Scope
from benchmarks.scheduling.store import Found, key
from benchmarks.scheduling.summary import Summary

JSA = "jsa"
BASELINES = ("jsa_max", "jsa_random", "jsa_min")
FIXED = tuple(f"{name}_fixed" for name in BASELINES)
OTHERS = (*BASELINES, *FIXED)
MODES = {"jsa-drop": True, "jsa-queue": False}
CLAIMS = {True: 2.0, False: 10.0}  # of the abstract: jobs completed, completion time


def runs(scope: Scope) -> Iterator[PublishedRun]:
    """Each rate, seed and mode, by JSA and each baseline."""
    for drop in MODES.values():
        for arrivals in scope.arrivals:
            for seed in scope.seeds:
                yield from (on_jsa(name, arrivals, seed, drop) for name in (JSA, *OTHERS))
                if drop:
                    yield on_jsa(OURS, arrivals, seed, drop)


def blocks(scope: Scope, found: Found) -> dict[str, str]:
    """Return a table for each mode of the simulation."""
    return {name: _mode(scope, found, drop) for name, drop in MODES.items()}


def _mode(scope: Scope, found: Found, drop: bool) -> str:
    what = "completed" if drop else "mean completion time, min"
    rows, cases = [], list[tuple[float, str]]()
    for arrivals in scope.arrivals:
        by_name = {
            name: [found[key(on_jsa(name, arrivals, seed, drop))] for seed in scope.seeds]
            for name in (JSA, *OTHERS)
        }
        ours = by_name[JSA]
        value = (
            said([one.completed for one in ours], 0)
            if drop
            else said([one.mean_jct_s / 60 for one in ours], 1)
        )
        better = {name: ratios(drop, ours, by_name[name]) for name in OTHERS}
        offered = f"{fmean(one.offered for one in ours):.0f}"
        row = [arrivals, offered, value, *(said(better[name], 2) for name in OTHERS)]
        if drop:
            own = [found[key(on_jsa(OURS, arrivals, seed, drop))] for seed in scope.seeds]
            row.append(said([one.completed for one in own], 0))
        rows.append(row)
        cases += [(fmean(better[name]), f"beside `{name}` at {arrivals}") for name in OTHERS]
    head = ["arrivals", "jobs", what, *(f"to `{name}`" for name in OTHERS)]
    head += [f"completed by `{OURS}`"] if drop else []
    reached = sum(1 for ratio, _ in cases if ratio >= CLAIMS[drop])
    (least, there), (most, where) = min(cases), max(cases)
    claim = (
        f"The claim, {CLAIMS[drop]:g} times, is reached in {reached} of {len(cases)} cases: it is "
        f"{least:.2f} ({there}) to {most:.2f} times ({where})."
    )
    return f"{table(head, rows)}\n\n{claim}"


def ratios(drop: bool, ours: Iterable[Summary], theirs: Iterable[Summary]) -> list[float]:
    """By how much JSA is better, seed by seed: jobs completed, or completion times."""
    pairs = zip(ours, theirs, strict=True)
    if drop:
        return [one.completed / max(1, other.completed) for one, other in pairs]
    return [other.mean_jct_s / one.mean_jct_s for one, other in pairs]


def said(values: Sequence[float], digits: int) -> str:
    """Mean, and the smallest and the largest where there are several."""
    mean = f"{fmean(values):.{digits}f}"
    if len(values) == 1:
        return mean
    return f"{mean} ({min(values):.{digits}f} to {max(values):.{digits}f})"
