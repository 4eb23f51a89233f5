"""The curve of a profile as a figure, for who has matplotlib."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from edl.core.job.profile import Curve
from edl.errors import UsageError

FORMATS = (".png", ".svg")


def check_figure(path: Path) -> None:
    """Refuse, before anything is measured, a figure that cannot be drawn.

    Raises:
        UsageError: the format is another one, its folder does not exist, or there is no matplotlib.
    """
    if path.suffix not in FORMATS:
        raise UsageError(f"--plot {path}: the name must end with {' or '.join(FORMATS)}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot {path}: there is no folder {path.parent}")
    if find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib: `pip install matplotlib`, or leave --plot out")


def draw(curve: Curve, path: Path) -> None:
    """Throughput over size, beside what it would be if each worker added all it has."""
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
