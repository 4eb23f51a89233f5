"""Curves with their spread, as small .svg files that are the same for the same numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = ("#1f6f8b", "#b4552d", "#2b8a57", "#7a5ba6", "#c29b1d", "#555555")
MOST_BYTES = 100_000
NO_METADATA = {"Creator": None, "Date": None, "Format": None, "Type": None}


def panels(count: int, title: str, height: float = 3.6) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(4.8 * count, height), layout="constrained")
    figure.suptitle(title, fontsize="medium")
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def curves(
    panel: Axes,
    at: Sequence[float],
    by_name: Mapping[str, Sequence[Sequence[float]]],
    geometric: bool = False,
    lines: Sequence[tuple[str, str]] = tuple(zip(COLOURS, "------", strict=True)),
) -> None:
    """Draw the mean over seeds of each curve, with one standard deviation to both sides.

    Args:
        panel: where to draw.
        at: the horizontal positions of the values.
        by_name: for each curve its values, by seed and by ``at``.
        geometric: take mean and deviation of the logarithms.
        lines: colour and style of each curve.
    """
    for (name, values), (colour, style) in zip(by_name.items(), lines, strict=False):
        table = np.array(values, dtype=np.float64)
        table = np.log(table) if geometric else table
        mean, spread = table.mean(axis=0), table.std(axis=0, ddof=1 if len(table) > 1 else 0)
        three = [mean, mean - spread, mean + spread]
        middle, low, high = np.exp(three) if geometric else three
        panel.plot(at, middle, style, color=colour, label=name, linewidth=1.2)
        panel.fill_between(at, low, high, color=colour, alpha=0.15, linewidth=0)


def save(figure: Figure, path: Path, title: str) -> None:
    """As .svg, with its title for who cannot see it, and without a date or an address."""
    for panel in figure.axes:
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "edl"}):
        figure.savefig(path, metadata=NO_METADATA)
    text = path.read_text(encoding="utf-8")
    begin = text.index(">", text.index("<svg ")) + 1
    text = f"{text[:begin]}\n <title>{escape(title)}</title>{text[begin:]}"
    text = re.sub(r"(\.\d\d)\d+", r"\1", text)  # of a point 1/72 inch wide
    text = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    size = len(text.encode())
    if size > MOST_BYTES:
        raise SystemExit(f"{path.name} has {size:,} bytes; draw fewer points, for {MOST_BYTES:,}")
    path.write_text(text, encoding="utf-8")
