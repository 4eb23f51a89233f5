"""Draw simulated runs with matplotlib: the slots of each job over time, and charts below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from edl.simulator.results import levels, spans
from edl.simulator.runs import RunOutcome
from edl.text import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_RUNS = 6
MAX_BARS = 3000  # of a run, as single shapes; more are one picture within the .svg
SHADES = {  # from so many slots on
    0: ("waits", "#dddddd"),
    1: ("1 slot", "#c6dbef"),
    2: ("2 to 3", "#6baed6"),
    4: ("4 to 7", "#2171b5"),
    8: ("8 or more", "#08306b"),
}
COLOURS = ("C0", "C1", "C2", "C3", "C4", "C5")


def figure_of(outcomes: Sequence[RunOutcome]) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    count = len(outcomes)
    figure = Figure(figsize=(10.0, 2.4 * count + 2.8), layout="constrained")
    grid = figure.add_gridspec(count + 1, 3, height_ratios=[2.4] * count + [2.8])
    _explain(figure)
    first_s = min(job.arrival_s for one in outcomes for job in one.result.jobs)
    last_s = max(job.end_s for one in outcomes for job in one.result.jobs)
    for number, one in enumerate(outcomes):
        axes = figure.add_subplot(grid[number, :])
        _draw_jobs(axes, one, first_s)
        axes.set_xlim(0, (last_s - first_s) / 3600)
    below = [figure.add_subplot(grid[count, column]) for column in range(3)]
    for one, colour in zip(outcomes, COLOURS, strict=False):
        _draw_levels(below[0], below[1], one, first_s, colour)
        hours = sorted(job.jct_s / 3600 for job in one.result.ended)
        parts = [100 * number / len(hours) for number in range(1, len(hours) + 1)]
        title = one.run.title
        below[2].step(hours, parts, where="post", color=colour, linewidth=1.2, label=title)
    total = max(one.run.nodes * one.run.slots for one in outcomes)
    below[0].axhline(total, color="0.6", linestyle=":")
    below[0].set(title="slots in use", xlabel="hours")
    below[1].set(title="jobs that wait", xlabel="hours")
    below[2].set(title="jobs that took no longer, %", xlabel="completion time, h", xscale="log")
    below[2].xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    below[2].xaxis.set_major_formatter("{x:g}")
    below[2].xaxis.set_minor_formatter(NullFormatter())
    for axes in below:
        axes.set_ylim(bottom=0)
    below[2].legend(fontsize="small")
    return figure


def _draw_jobs(axes: Axes, outcome: RunOutcome, first_s: float) -> None:
    """Draw a line over time for each job of a run, the darker the more slots it has."""
    jobs = outcome.result.jobs
    bars: dict[str, list[tuple[float, float, float]]] = {}
    for row, job in enumerate(sorted(jobs, key=lambda job: job.arrival_s)):
        for span in spans(job):
            shade = SHADES[max(least for least in SHADES if least <= span.slots)][1]
            bars.setdefault(shade, []).append((row, span.from_s, span.to_s))
    many = sum(map(len, bars.values())) > MAX_BARS
    for shade, of in bars.items():
        rows = [row for row, _, _ in of]
        starts = [(from_s - first_s) / 3600 for _, from_s, _ in of]
        widths = [(to_s - from_s) / 3600 for _, from_s, to_s in of]
        axes.barh(rows, widths, 0.9, starts, color=shade, linewidth=0, rasterized=many)
    axes.invert_yaxis()
    axes.set(title=outcome.run.title, ylabel=counted(len(jobs), "job"), yticks=[])


def _explain(figure: Figure) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(color=shade, label=name) for name, shade in SHADES.values()]
    figure.legend(handles=patches, loc="outside upper center", ncols=len(patches), fontsize="small")


def _draw_levels(
    used: Axes, waiting: Axes, outcome: RunOutcome, first_s: float, colour: str
) -> None:
    found = levels(outcome.result)  # the first one is at 0, before each job
    hours = [max(0.0, level.at_s - first_s) / 3600 for level in found]
    for axes, values in (
        (used, [level.used for level in found]),
        (waiting, [level.waiting for level in found]),
    ):
        axes.step(hours, values, where="post", color=colour, linewidth=0.8)
