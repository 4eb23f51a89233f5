"""Draw the throughput of a job by number of workers, and its history, with matplotlib.

The callers check with :func:`edl.figures.check_figure` that the file can be drawn.
"""

from __future__ import annotations

from pathlib import Path

from edl.job.profile import Curve
from edl.policy.observation import History


def draw(curve: Curve, path: Path) -> None:
    """Draw the throughput of a job over its number of workers into the file `path`."""
    from matplotlib.figure import Figure

    sizes = [point.np for point in curve.points]
    first = curve.points[0]
    figure = Figure(figsize=(6.0, 4.0), layout="constrained")
    axes = figure.subplots()
    ideal = [first.throughput * np / first.np for np in sizes]
    axes.plot(sizes, ideal, "--", color="0.6", label="linear")
    axes.plot(sizes, [p.throughput for p in curve.points], "o-", color="C0", label="measured")
    for point in curve.points:
        axes.annotate(
            f"{curve.efficiency(point):.0%}",
            (point.np, point.throughput),
            xytext=(0, -14),
            textcoords="offset points",
            ha="center",
        )
    axes.set(title=f"job {curve.job}", xlabel="workers", ylabel=curve.unit, xticks=sizes)
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.savefig(path)


COLOURS = {"policy": "C1", "person": "C2", "straggler": "C3"}


def draw_history(found: History, path: Path) -> None:
    """Draw a job's number of workers and its throughput over time into the file `path`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 4.5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    times, sizes, rates = list[float](), list[int](), list[float]()
    for span in found.spans:
        times += [span.from_s, span.to_s]
        sizes += [span.np, span.np]
        rates += [float("nan") if span.samples_per_s is None else span.samples_per_s] * 2
    above.plot(times, sizes, color="C0")
    below.plot(times, rates, color="C0")
    for who in sorted({mark.by for mark in found.marks}):
        at = [mark.at_s for mark in found.marks if mark.by == who]
        for axes in (above, below):
            lines = axes.vlines(at, 0, 1, COLOURS.get(who, "0.7"), linestyles=":", label=who)
            lines.set_transform(axes.get_xaxis_transform())
    above.set(title=f"job {found.job}", ylabel="workers")
    below.set(xlabel="seconds", ylabel="samples a second")
    for axes in (above, below):
        axes.set_ylim(bottom=0)
    above.yaxis.get_major_locator().set_params(integer=True)
    if found.marks:
        above.legend(loc="lower right")
    figure.savefig(path)
