"""Figures -> a table for people and a picture."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median

import matplotlib as mpl
import psutil

from benchmarks.resize import Stall
from benchmarks.step_time import Comparison

mpl.use("Agg")
import matplotlib.pyplot as plt

STOCK, EDL = "stock Horovod Elastic", "edl"
COLOURS = {STOCK: "#b4552d", EDL: "#1f6f8b"}

Repetitions = Mapping[str, Sequence[Mapping[str, Stall]]]  # system -> one entry a repetition


@dataclass(frozen=True)
class Row:
    """A line of the table. ``reached`` is None where nothing was asked."""

    what: str
    stock: str
    edl: str
    ratio: str = ""
    asked: str = ""
    reached: bool | None = None


def resize_rows(repetitions: Repetitions) -> list[Row]:
    """Two rows a change: the longest gap, and the median step beside it."""
    rows = []
    for change in repetitions[STOCK][0]:
        stock = [each[change] for each in repetitions[STOCK]]
        ours = [each[change] for each in repetitions[EDL]]
        a, b = median(s.gap_s for s in stock), median(s.gap_s for s in ours)
        if "out" in change:
            asked, reached = "≤ 0.10 of stock and ≤ 0.3 s", b <= 0.1 * a and b <= 0.3
        else:
            asked, reached = "≤ stock", b <= a
        rows.append(
            Row(
                f"**{change}**: longest gap between two steps of an old worker",
                _spread([s.gap_s for s in stock]),
                _spread([s.gap_s for s in ours]),
                f"{b / a:.2f}",
                asked,
                reached,
            )
        )
        rows.append(
            Row(
                "its median step before the change",
                _spread([s.median_step_s for s in stock]),
                _spread([s.median_step_s for s in ours]),
            )
        )
    return rows


def step_time_rows(comparison: Comparison, control: Comparison | None) -> list[Row]:
    rows = [
        Row(
            "**step time**, 2 workers: plain `hvd.DistributedOptimizer` and edl, in turns",
            _time(comparison.a_s),
            _time(comparison.b_s),
            _ratio(comparison),
            "≤ 1.03",
            comparison.ratio <= 1.03,
        )
    ]
    if control is not None:
        rows.append(
            Row(
                "the same with plain Horovod twice: the noise of this measurement",
                _time(control.a_s),
                f"({_time(control.b_s)})",
                _ratio(control),
            )
        )
    return rows


def markdown(rows: Sequence[Row], notes: Sequence[str]) -> str:
    """The report: machine, table, notes."""
    lines = [
        "# Benchmark: edl beside stock Horovod",
        "",
        "Written by `make bench`; do not edit. The raw figures are in `results.json`.",
        "",
        f"Machine: {machine()}.",
        "MLP 256-2048-2048-10 (4.7 M parameters), batch 32 a worker, SGD with momentum, synthetic",
        "data; `OMP_NUM_THREADS=1`, Horovod's default cycle time.",
        "",
        "| what | stock | edl | edl / stock | asked | reached |",
        "|---|---:|---:|---:|---|---|",
    ]
    for row in rows:
        reached = {True: "yes", False: "**no**", None: ""}[row.reached]
        cells = (row.what, row.stock, row.edl, row.ratio, row.asked, reached)
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *(f"- {note}" for note in notes), "", "![the figures](figures.png)", ""]
    return "\n".join(lines)


def machine() -> str:
    """The machine and the versions, in a line."""
    cores, memory = psutil.cpu_count(), psutil.virtual_memory().total / 2**30
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "horovod"))
    return f"{cores} cores, {memory:.0f} GiB, Python {platform.python_version()}, {versions}"


def picture(path: Path, repetitions: Repetitions | None, comparison: Comparison | None) -> None:
    """One panel a change, and one for the step times."""
    changes = list(repetitions[STOCK][0]) if repetitions else []
    count = len(changes) + (comparison is not None)
    figure, axes = plt.subplots(1, count, figsize=(5.2 * count, 3.8), squeeze=False)
    panels = iter(axes[0])
    for change in changes:
        assert repetitions is not None
        panel = next(panels)
        for system in (STOCK, EDL):
            runs = sorted((each[change] for each in repetitions[system]), key=lambda s: s.gap_s)
            typical = runs[len(runs) // 2]
            time_s, gap_s = zip(*typical.timeline, strict=True)
            panel.plot(time_s, gap_s, ".-", ms=4, lw=1, color=COLOURS[system], label=system)
            panel.annotate(
                f"{typical.gap_s:.2f} s",
                max(typical.timeline, key=lambda point: point[1]),
                textcoords="offset points",
                xytext=(5, 3),
                color=COLOURS[system],
            )
        panel.set(yscale="log", title=change, xlabel="seconds since the request")
        panel.set_ylabel("an old worker's time between steps, s")
        panel.set_ylim(top=2 * panel.get_ylim()[1])  # room for the labels
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_formatter("")
        panel.legend(loc="upper right", fontsize=8)
    if comparison is not None:
        panel = next(panels)
        panel.axhspan(0.97, 1.03, color="0.92", zorder=0)
        panel.axhline(1.0, color="0.5", lw=1)
        panel.plot(comparison.ratios, ".", color=COLOURS[EDL])
        panel.axhline(comparison.ratio, color=COLOURS[EDL], lw=1)
        panel.set(
            title=f"step time, edl / plain Horovod: {comparison.ratio:.3f}",
            xlabel="pair of blocks",
            ylabel="ratio of the medians",
        )
    for panel in axes[0]:
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def _spread(seconds: Sequence[float]) -> str:
    """Median, and the least and greatest in brackets."""
    return f"{_time(median(seconds))} ({_time(min(seconds))} to {_time(max(seconds))})"


def _ratio(comparison: Comparison) -> str:
    return f"{comparison.ratio:.3f} ({comparison.low:.3f} to {comparison.high:.3f})"
