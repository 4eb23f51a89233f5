"""What a resize without a stop is worth: completion time against its cost and the interval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from benchmarks.adapting import drawing
from benchmarks.page import table
from benchmarks.published.pollux_workload import INTERVAL_S, RESIZE
from benchmarks.published.runs import PublishedRun
from benchmarks.scheduling.jobs import on_pollux
from benchmarks.scheduling.published import SEARCHED, listed_numbers, percent
from benchmarks.scheduling.scope import OURS, Scope, Workloads
from benchmarks.scheduling.store import Found, key

USUAL_S = INTERVAL_S  # between two decisions
STOP_S, LIVE_S = RESIZE.join, 0.3  # a restart from a checkpoint; what edl takes
FIGURE = "resize-cost.svg"
STYLES = [(colour, style) for style in ("-", "--") for colour in drawing.COLOURS]


@dataclass(frozen=True)
class Series:
    """A policy on some workloads of a load, by some intervals and all costs."""

    policy: str
    load: str
    workloads: tuple[int, ...]
    intervals_s: tuple[float, ...]

    def runs(self, every_s: float, cost_s: float) -> list[PublishedRun]:
        """One for each workload."""
        return [
            on_pollux(self.policy, self.load, number, every_s, cost_s) for number in self.workloads
        ]

    def mean_s(self, found: Found, every_s: float, cost_s: float) -> float:
        """Mean completion time."""
        return fmean(found[key(run)].mean_jct_s for run in self.runs(every_s, cost_s))

    @property
    def cells(self) -> list[str]:
        """Which it is."""
        return [self.policy, self.load, listed_numbers(self.workloads)]


def grids(scope: Scope) -> list[Series]:
    """Those in which all intervals meet all costs."""
    return _series(scope, scope.grid, scope.intervals_s)


def crosses(scope: Scope) -> list[Series]:
    """Those in which either the interval or the cost is as published, or a resize is cheap."""
    return _series(scope, scope.cross, scope.cross_intervals_s)


def _series(scope: Scope, loads: Workloads, intervals_s: tuple[float, ...]) -> list[Series]:
    few = scope.searched_intervals_s
    made = []
    for load, workloads in loads.items():
        made += [Series(policy, load, workloads, intervals_s) for policy in scope.elastic]
        made += [Series(SEARCHED, load, workloads, few)] if few else []
        made.append(Series(OURS, load, workloads, intervals_s))
    return made


def runs(scope: Scope) -> Iterator[PublishedRun]:
    """All that the tables below are made of."""
    for one in grids(scope):
        for every_s in one.intervals_s:
            for cost_s in scope.costs_s:
                yield from one.runs(every_s, cost_s)
    for one in crosses(scope):
        for cost_s in scope.costs_s:
            yield from one.runs(USUAL_S, cost_s)
        for every_s in one.intervals_s:
            for cost_s in (LIVE_S, STOP_S):
                yield from one.runs(every_s, cost_s)


def blocks(scope: Scope, found: Found) -> dict[str, str]:
    """Return the grids, how much is gained, and what other loads say, by name."""
    return {
        "resize-gain": _gains(scope, found),
        "resize-cost": _grid(scope, found),
        "resize-loads": _by_cost(scope, found),
        "resize-intervals": _by_interval(scope, found),
    }


def _grid(scope: Scope, found: Found) -> str:
    rows = [
        [*one.cells, f"{every_s:g}", *_numbers(one, found, [(every_s, c) for c in scope.costs_s])]
        for one in grids(scope)
        for every_s in one.intervals_s
    ]
    return table(["policy", "load", "workloads", "interval s", *_seconds(scope.costs_s)], rows)


def _gains(scope: Scope, found: Found) -> str:
    """Return a table of how the mean changes with cheap resizes, a short interval, and both."""
    rows, live_parts, starts = [], list[float](), list[float]()
    for one in [*grids(scope), *crosses(scope)]:
        shortest_s = min(one.intervals_s)
        usual = one.mean_s(found, USUAL_S, STOP_S)
        live, often, both = (
            one.mean_s(found, *at) / usual
            for at in ((USUAL_S, LIVE_S), (shortest_s, STOP_S), (shortest_s, LIVE_S))
        )
        best, best_stop = (
            min(one.mean_s(found, every_s, cost_s) for every_s in one.intervals_s)
            for cost_s in (LIVE_S, STOP_S)
        )
        live_parts.append(live)
        starts.append(1 - (STOP_S - LIVE_S) / usual)
        parts = [percent(part) for part in (live, often, both, best / best_stop)]
        rows.append([*one.cells, f"{usual:.0f}", f"{shortest_s:g}", *parts])
    head = ["policy", "load", "workloads", "mean s at 60 s, 30 s", "shortest interval s"]
    head += ["0.3 s a resize", "shortest interval", "both", "0.3 s, best interval of each"]
    told = (
        f"Each {USUAL_S:g} s, a resize of {LIVE_S:g} s in place of {STOP_S:g} s changes the mean "
        f"by {percent(max(live_parts))} to {percent(min(live_parts))}; the start alone, which each "
        f"job pays once, by {percent(max(starts))} to {percent(min(starts))}."
    )
    return f"{table(head, rows)}\n\n{told}"


def _by_cost(scope: Scope, found: Found) -> str:
    rows = [
        [*one.cells, *_numbers(one, found, [(USUAL_S, cost_s) for cost_s in scope.costs_s])]
        for one in crosses(scope)
    ]
    return table(["policy", "load", "workloads", *_seconds(scope.costs_s)], rows)


def _by_interval(scope: Scope, found: Found) -> str:
    rows = []
    for one in crosses(scope):
        for cost_s in (LIVE_S, STOP_S):
            numbers = [
                f"{one.mean_s(found, every_s, cost_s):.0f}" if every_s in one.intervals_s else ""
                for every_s in scope.cross_intervals_s
            ]
            rows.append([*one.cells, f"{cost_s:g} s", *numbers])
    head = ["policy", "load", "workloads", "a resize", *_seconds(scope.cross_intervals_s)]
    return table(head, rows)


def _numbers(one: Series, found: Found, at: Sequence[tuple[float, float]]) -> list[str]:
    return [f"{one.mean_s(found, every_s, cost_s):.0f}" for every_s, cost_s in at]


def _seconds(values: Sequence[float]) -> list[str]:
    return [f"{value:g} s" for value in values]


def draw(scope: Scope, found: Found, folder: Path) -> None:
    """Completion time over the cost, and over the interval, beside that at 60 and 30 s."""
    costs_s, intervals_s = scope.costs_s, scope.intervals_s
    title = f"Mean completion time, as a part of that at {USUAL_S:g} s and {STOP_S:g} s a resize"
    figure, panels = drawing.panels(3, title)
    ways = [
        (f"decisions each {USUAL_S:g} s", "a resize, s", costs_s, [(USUAL_S, c) for c in costs_s])
    ] + [
        (f"{cost_s:g} s a resize", "interval, s", intervals_s, [(s, cost_s) for s in intervals_s])
        for cost_s in (STOP_S, LIVE_S)
    ]
    first: dict[str, Series] = {}
    for one in grids(scope):
        first.setdefault(one.policy, one)
    for panel, (about, label, values, points) in zip(panels, ways, strict=True):
        for one, (colour, style) in zip(first.values(), STYLES, strict=False):
            at = [place for place, (every_s, _) in enumerate(points) if every_s in one.intervals_s]
            usual = one.mean_s(found, USUAL_S, STOP_S)
            parts = [one.mean_s(found, *points[place]) / usual for place in at]
            name = f"{one.policy}, load {one.load}"
            panel.plot(at, parts, style, color=colour, label=name, marker=".", linewidth=1.2)
        panel.set_title(about, fontsize="medium")
        panel.set_xlabel(label)
        panel.set_xticks(range(len(values)), [f"{value:g}" for value in values])
    panels[0].legend(fontsize="small")
    drawing.save(figure, folder / FIGURE, title)
