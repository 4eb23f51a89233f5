"""Draw what each policy did, live and simulated, side by side: the slots of each job over time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path as Shape

from benchmarks.adapting import drawing
from benchmarks.cluster_jobs.live import LiveJob, LiveRun
from benchmarks.cluster_jobs.workload import MOST
from edl.simulator.results import Result, spans

SHADES = ("#dddddd", "#9ecae1", "#4292c6", "#2171b5", "#08306b")  # by the number of slots
HEIGHT = 0.9  # of a bar with the most slots, in rows
WAITS = 0.1  # of one without slots
SHORTEST_S = 0.5  # of a bar that is drawn
TITLE = "The slots of eight jobs over time, on a live cluster and in the simulator"


class Bar(NamedTuple):
    """A period in which a job had a number of slots.

    Attributes:
        from_s: its begin, in seconds.
        to_s: its end.
        slots: the number; 0: the job waited.
    """

    from_s: float
    to_s: float
    slots: int


def live_bars(job: LiveJob) -> list[Bar]:
    """Return the periods from the submission of a live job to its end."""
    changes = [(max(at_s, job.submitted_s), slots) for at_s, slots in job.slots]
    ends_s = [*(at_s for at_s, _ in changes[1:]), job.ended_s]
    bars = [
        Bar(from_s, min(to_s, job.ended_s), slots)
        for (from_s, slots), to_s in zip(changes, ends_s, strict=True)
    ]
    return [bar for bar in bars if bar.to_s > bar.from_s]


def draw(runs: Sequence[tuple[LiveRun, Result]], path: Path) -> None:
    """Write the figure of all runs, each with its simulation."""
    figure = Figure(figsize=(11.0, 1.9 * len(runs) + 0.6), layout="constrained")
    grid = figure.subplots(len(runs), 2, squeeze=False, sharex=True, sharey=True)
    names = ["waits", *(f"{n} slot{'s' * (n > 1)}" for n in range(1, MOST + 1))]
    patches = [Patch(color=shade, label=name) for shade, name in zip(SHADES, names, strict=True)]
    figure.legend(handles=patches, loc="outside upper center", ncols=len(names), fontsize="small")
    for (live, simulated), (left, right) in zip(runs, grid, strict=True):
        _draw_jobs(left, [live_bars(job) for job in live.jobs])
        _draw_jobs(right, [map(Bar._make, spans(job)) for job in simulated.jobs])
        for at_s, what in live.kills:
            left.axvline(at_s, color="#b4552d", linewidth=0.8, linestyle="--")
            left.annotate(
                what.removeprefix("the ").replace("`", ""),
                (at_s, len(live.jobs) - 0.4),
                xytext=(2, 0),
                textcoords="offset points",
                fontsize=6,
                color="#b4552d",
            )
        left.set(title=f"{live.policy.name}, live")
        right.set(title=f"{live.policy.name}, simulated")
        left.set_yticks(range(len(live.jobs)), [job.name for job in live.jobs], fontsize=7)
    for axes in grid.flat:
        axes.tick_params(length=0)
    grid[0][0].set_ylim(len(runs[0][0].jobs) - 0.1, -0.6)
    for axes in grid[-1]:
        axes.set(xlabel="seconds")
    drawing.save(figure, path, TITLE)


def _draw_jobs(axes: Axes, jobs: Iterable[Iterable[Bar]]) -> None:
    """Draw a row of bars for each job, the first one on top; all of one shade as one shape."""
    boxes: dict[int, list[Shape]] = {}
    for row, bars in enumerate(jobs):
        for bar in (bar for bar in bars if bar.to_s - bar.from_s >= SHORTEST_S):
            height = HEIGHT * bar.slots / MOST if bar.slots else WAITS
            low, high = row - height / 2, row + height / 2
            corners = [(bar.from_s, low), (bar.to_s, low), (bar.to_s, high), (bar.from_s, high)]
            boxes.setdefault(bar.slots, []).append(Shape([*corners, corners[0]], closed=True))
    for slots, paths in sorted(boxes.items()):
        shape = Shape.make_compound_path(*paths)
        axes.add_patch(PathPatch(shape, facecolor=SHADES[slots], linewidth=0))
    axes.autoscale_view()
