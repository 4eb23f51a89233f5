"""Figures -> a table for people and a picture."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl
import psutil
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks import crash
from benchmarks.crash import Crash
from benchmarks.resize import Stall
from benchmarks.step_time import Comparison

mpl.use("Agg")
import matplotlib.pyplot as plt

STOCK, EDL = "stock Horovod Elastic", "edl"
HOROVODRUN, CHANGED = "edl under horovodrun", "edl, one changed import"
COLOURS = {STOCK: "#b4552d", EDL: "#1f6f8b", HOROVODRUN: "#2b8a57", CHANGED: "#7a5ba6"}

Crashes = Mapping[str, Sequence[Crash]]  # by scenario
Repetitions = Mapping[str, Sequence[Mapping[str, Stall]]]  # system -> one entry a repetition


@dataclass(frozen=True)
class Row:
    """A line of the table. ``asked`` is the goal; ``reached`` is None where there is none."""

    what: str
    stock: str
    edl: str
    ratio: str = ""
    asked: str = ""
    reached: bool | None = None


def resize_rows(
    repetitions: Repetitions, limit_s: float | None = None, system: str = EDL, about: str = ""
) -> list[Row]:
    """Return three rows for each change: the longest gap, the median step around it, the parts.

    Args:
        repetitions: the stalls by system, repetition and change.
        limit_s: the limit for a scale-out, besides a tenth of stock's gap; None: none.
        system: the system to compare with stock Horovod.
        about: words before the change.
    """
    rows = []
    for change in repetitions[STOCK][0]:
        stock = [each[change] for each in repetitions[STOCK]]
        ours = [each[change] for each in repetitions[system]]
        a, b = median(s.gap_s for s in stock), median(s.gap_s for s in ours)
        asked, reached = _asked_of_resize(change, system, a, b, limit_s)
        rows.append(
            Row(
                f"**{about}{change}**: longest gap between two steps of an old worker",
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
        rows.append(Row("its parts, in edl's event log", "", _parts([s.parts_s for s in ours])))
    return rows


def _asked_of_resize(
    change: str, system: str, stock_s: float, ours_s: float, limit_s: float | None
) -> tuple[str, bool | None]:
    """Return the limit for the gap of a change as text, and whether it was kept.

    An empty text and None mean that there is no limit.
    """
    if change.startswith("scale-out") and system in (EDL, HOROVODRUN):
        reached = ours_s <= 0.1 * stock_s
        if limit_s is None:
            return "≤ 0.10 of stock", reached
        return f"≤ 0.10 of stock and ≤ {limit_s:g} s", reached and ours_s <= limit_s
    if change.startswith("scale-in") and system == EDL:
        return "≤ stock", ours_s <= stock_s
    return "", None


# Scenario -> the goal of the gap as text and in seconds, and the session time-out in it.
ASKED_GAP = {
    crash.PLAIN: ("≤ 0.5 s", 0.5, 0.0),
    crash.LEADER: ("≤ 1.5 s", 1.5, 0.0),
    crash.SUSPENDED: ("≤ 1.5 s", 1.5, 0.0),
    crash.FROZEN: ("≤ the time-out + 1 s", 1.0, crash.SESSION_S),
}


def crash_rows(crashes: Crashes) -> list[Row]:
    """Return the rows of the gap of each scenario, then the steps redone, then the parts."""
    stock = next((crashes[name] for name in crash.STOCK if name in crashes), [])
    rows = []
    asked_gap = {name: asked for name, asked in ASKED_GAP.items() if name in crashes}
    for name, (asked, limit_s, timeout_s) in asked_gap.items():
        gaps = [c.gap_s for c in crashes[name]]
        beside = stock if name == crash.PLAIN else []
        what = f"**{name}**, one of {crash.WORKERS}: longest gap between two steps of a survivor"
        rows.append(
            Row(
                f"{what} (session time-out {timeout_s:g} s)" if timeout_s else what,
                _spread([c.gap_s for c in beside]) if beside else "",
                _spread(gaps),
                f"{median(gaps) / median(c.gap_s for c in beside):.3f}" if beside else "",
                asked,
                max(gaps) <= timeout_s + limit_s,
            )
        )
    for name in list(crash.STOCK)[1:]:
        if name in crashes:
            gap = _spread([c.gap_s for c in crashes[name]])
            rows.append(Row(f"**worker killed**, {name} Gloo time-out", gap, ""))
    ours = [c.redone for name in asked_gap for c in crashes[name]]
    redone = _range([c.redone for c in stock]) if stock else ""
    rows.append(Row("steps redone, all of these", redone, _range(ours), "", "0", max(ours) == 0))
    step_s = [c.median_step_s for name in asked_gap for c in crashes[name]]
    stock_step = _spread([c.median_step_s for c in stock]) if stock else ""
    rows.append(Row("the median step before", stock_step, _spread(step_s)))
    for name in asked_gap:
        rows.append(Row(f"parts, {name}", "", _parts([c.parts_s for c in crashes[name]])))
    return rows


def crash_notes(crashes: Crashes) -> list[str]:
    """How the rows of crashes are to be read."""
    count = ", ".join(f"{len(found)} of {name}" for name, found in crashes.items())
    faults = (
        f"Crashes: {count}. Median (least to greatest); the goal is compared with the "
        "greatest. Stock bars the host of a dead worker, so its job has two hosts, both this "
        "machine; it goes back to its last commit, made every 100 steps."
    )
    parts = (
        "Parts of a recovery: medians of what the slowest survivor reports in the event log. "
        "detect: waiting for the others before it knew; close: until the old ring was closed, "
        "beyond election and survivor report; first-step: until the interrupted step was complete. "
        "What is left of the gap is the step's own forward and backward."
    )
    return [faults, parts]


def _parts(reported: Sequence[Mapping[str, float]]) -> str:
    """Return the median of each part as text; parts that are always 0 are left out."""
    given = [parts for parts in reported if parts]
    medians = {name: median(parts[name] for parts in given) for name in (given or [{}])[0]}
    return ", ".join(f"{n.replace('_', '-')} {_time(s)}" for n, s in medians.items() if s)


def _range(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low} to {high}" if low < high else str(low)


MODES = {
    "": ("plain `hvd.DistributedOptimizer` and edl", "≤ 1.03"),
    "fit": ("Keras' `fit`", "≤ 1.03"),
    "function": ("a loop with a `tf.function`", "≤ 1.03"),
    "graph": ("a graph and a session", "≤ 1.03"),
    "wide": ("a `tf.function` of the wide model, which is almost all communication", ""),
}


def step_time_rows(comparisons: Mapping[str, Comparison], control: Comparison | None) -> list[Row]:
    rows = []
    for mode, comparison in comparisons.items():
        what, asked = MODES[mode]
        rows.append(
            Row(
                f"**step time**, 2 workers, plain Horovod and edl in turns: {what}",
                _time(comparison.a_s),
                _time(comparison.b_s),
                _ratio(comparison),
                asked,
                comparison.ratio <= 1.03 if asked else None,
            )
        )
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


SCALE_OUT_LIMIT_S = {"torch": 0.3, "tensorflow": None}


def rows_and_notes(framework: str, results: Mapping[str, Any]) -> tuple[list[Row], list[str]]:
    """All that there is to say of one framework."""
    rows, notes = [], []
    if stalls := results.get("resize"):
        rows += resize_rows(stalls, SCALE_OUT_LIMIT_S[framework])
        count = len(stalls[EDL])
        notes.append(f"{count} repetitions, stock and edl by turns: median (least to greatest).")
        notes.append("Stock is Horovod's own elastic mode on the same Horovod build as edl.")
    if crashes := results.get("crash"):
        rows += crash_rows(crashes)
        notes += crash_notes(crashes)
    if steps := results.get("step_time"):
        rows += step_time_rows(steps, results.get("control"))
        for mode, found in steps.items():
            notes.append(
                f"Step time{mode and f', {mode}'}: {len(found.ratios)} pairs of neighbouring "
                "blocks; median ratio and its 95 % interval (bootstrap). CPU time of a worker in a "
                f"step: {found.a_cpu_s * 1e3:.1f} ms (plain) and {found.b_cpu_s * 1e3:.1f} ms "
                f"(edl); while it waits for its turn: {found.a_idle:.1%} and {found.b_idle:.1%} "
                "of a core."
            )
    return rows, notes


def horovod_rows_and_notes(results: Mapping[str, Repetitions]) -> tuple[list[Row], list[str]]:
    """Return the rows and notes on edl under Horovod's launcher and with Horovod's scripts."""
    rows, counts = [], []
    for framework, repetitions in results.items():
        counts.append(f"{len(repetitions[STOCK])} of {WORKLOADS[framework][0]}")
        for system in (HOROVODRUN, CHANGED):
            if system in repetitions:
                about = f"{WORKLOADS[framework][0]}, {system.removeprefix('edl').strip(' ,')}: "
                rows += resize_rows(repetitions, system=system, about=about)
    return rows, [
        f"Repetitions: {', '.join(counts)}; all systems by turns: median (least to greatest).",
        "Stock is Horovod's own elastic mode on the same Horovod build as edl.",
        "Under horovodrun: edl's script, with `edl-worker` and `edl-discover`.",
        "One changed import: stock's script, after it, under `edl run`.",
    ]


WORKLOADS = {
    "torch": (
        "PyTorch",
        (
            "MLP 256-2048-2048-10 (4.7 M parameters), batch 32 a worker, SGD with momentum, "
            "synthetic data; `OMP_NUM_THREADS=1`, Horovod's default cycle time."
        ),
    ),
    "tensorflow": (
        "TensorFlow",
        (
            "60 residual blocks of 256 units (4.0 M parameters in 242 variables, a graph that "
            "takes seconds to build), batch 128 a worker, SGD with momentum, synthetic data; "
            "one thread within and two between operations, Horovod's default cycle time. The wide "
            "model is PyTorch's MLP."
        ),
    ),
    "horovod": (
        "in Horovod's own world",
        "The models are those of [PyTorch](torch.md) and [TensorFlow](tensorflow.md) (`fit`).",
    ),
}


def markdown(framework: str, rows: Sequence[Row], notes: Sequence[str]) -> str:
    """Return the text of the report: machine, table, notes."""
    name, workload = WORKLOADS[framework]
    lines = [
        f"# Benchmark: edl beside stock Horovod, {name}",
        "",
        f"Written by `make bench`; do not edit. The raw figures are in `{framework}.json`.",
        "",
        f"Machine: {machine()}.",
        workload,
        "",
        "| what | stock | edl | edl / stock | goal | goal reached |",
        "|---|---:|---:|---:|---|---|",
    ]
    for row in rows:
        reached = {True: "yes", False: "**no**", None: ""}[row.reached]
        cells = (row.what, row.stock, row.edl, row.ratio, row.asked, reached)
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", *(f"- {note}" for note in notes), "", f"![the figures]({framework}.png)", ""]
    return "\n".join(lines)


def machine() -> str:
    """Return a line about the machine and the versions of the frameworks."""
    cores, memory = psutil.cpu_count(), psutil.virtual_memory().total / 2**30
    versions = ", ".join(
        f"{name} {version(name)}" for name in ("torch", "tensorflow-cpu", "horovod")
    )
    return f"{cores} cores, {memory:.0f} GiB, Python {platform.python_version()}, {versions}"


def picture(path: Path, results: Mapping[str, Any]) -> None:
    """One panel a change, one for the crashes, and one for the step times."""
    repetitions: Repetitions | None = results.get("resize")
    crashes: Crashes | None = results.get("crash")
    comparisons: Mapping[str, Comparison] = results.get("step_time", {})
    changes = list(repetitions[STOCK][0]) if repetitions else []
    figure, axes = _panels(len(changes) + (crashes is not None) + bool(comparisons))
    panels = iter(axes)
    for change in changes:
        assert repetitions is not None
        _draw_resize(next(panels), change, repetitions)
    if crashes is not None:
        _draw_crashes(next(panels), crashes)
    if comparisons:
        panel = next(panels)
        panel.axhspan(0.97, 1.03, color="0.92", zorder=0)
        panel.axhline(1.0, color="0.5", lw=1)
        for index, (mode, comparison) in enumerate(comparisons.items()):
            colour = COLOURS[EDL] if len(comparisons) == 1 else f"C{index}"
            label = f"{mode} {comparison.ratio:.3f}"
            panel.plot(comparison.ratios, ".", color=colour, label=label)
            panel.axhline(comparison.ratio, color=colour, lw=1)
        panel.legend(fontsize=8)
        panel.set(
            title="step time, edl / plain Horovod",
            xlabel="pair of blocks",
            ylabel="ratio of the medians",
        )
    _save(figure, path)


def horovod_picture(path: Path, results: Mapping[str, Repetitions]) -> None:
    """One panel a framework and change."""
    wanted = [(f, change) for f, found in results.items() for change in found[STOCK][0]]
    figure, axes = _panels(len(wanted))
    for panel, (framework, change) in zip(axes, wanted, strict=True):
        _draw_resize(panel, change, results[framework], f"{WORKLOADS[framework][0]}: {change}")
    _save(figure, path)


def _panels(count: int) -> tuple[Figure, Sequence[Axes]]:
    figure, axes = plt.subplots(1, count, figsize=(5.2 * count, 3.8), squeeze=False)
    return figure, list(axes[0])


def _save(figure: Figure, path: Path) -> None:
    for panel in figure.axes:
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _draw_resize(panel: Axes, change: str, repetitions: Repetitions, title: str = "") -> None:
    """Draw the time between steps in the typical run of each system."""
    for system, found in repetitions.items():
        runs = sorted((each[change] for each in found), key=lambda s: s.gap_s)
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
    panel.set(yscale="log", title=title or change, xlabel="seconds since the request")
    panel.set_ylabel("an old worker's time between steps, s")
    panel.set_ylim(top=2 * panel.get_ylim()[1])  # room for the labels
    panel.yaxis.set_major_formatter("{x:g}")
    panel.yaxis.set_minor_formatter("")
    panel.legend(loc="upper right", fontsize=8)


def _draw_crashes(panel: Axes, crashes: Crashes) -> None:
    """Draw a bar for each scenario: the gap of the typical fault, and the parts of its recovery."""
    shown = [name for name in ASKED_GAP if name in crashes]
    for place, name in enumerate(shown):
        runs = sorted(crashes[name], key=lambda c: c.gap_s)
        typical = runs[len(runs) // 2]
        left = max(0.0, typical.gap_s - sum(typical.parts_s.values()))
        panel.barh(place, left, color="0.85", label="its own step" if place == 0 else None)
        for index, part in enumerate(typical.parts_s):
            label = part if place == 0 else None
            panel.barh(place, typical.parts_s[part], left=left, color=f"C{index}", label=label)
            left += typical.parts_s[part]
        panel.annotate(f" {typical.gap_s:.2f} s", (left, place), va="center")
    stock = next((crashes[name] for name in crash.STOCK if name in crashes), None)
    title = "a worker is lost: a survivor's gap"
    if stock:
        title += f"\n(stock Horovod Elastic: {median(c.gap_s for c in stock):.1f} s)"
    panel.set(title=title, xlabel="seconds", yticks=range(len(shown)), yticklabels=shown)
    panel.invert_yaxis()
    panel.margins(x=0.15)
    panel.legend(fontsize=8)


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def _spread(seconds: Sequence[float]) -> str:
    """Median, and the least and greatest in brackets."""
    return f"{_time(median(seconds))} ({_time(min(seconds))} to {_time(max(seconds))})"


def _ratio(comparison: Comparison) -> str:
    return f"{comparison.ratio:.3f} ({comparison.low:.3f} to {comparison.high:.3f})"
