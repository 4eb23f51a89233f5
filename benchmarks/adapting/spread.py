"""Means over seeds, their standard errors, and whether a difference is more than the spread."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# Student's t, 95 % on two sides, by degrees of freedom; between two, the lower one.
T_95 = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
T_95 |= {10: 2.23, 12: 2.18, 15: 2.13, 20: 2.09, 30: 2.04}


@dataclass(frozen=True)
class Mean:
    """Of values by seed. ``error``: the standard error of the mean; of a single value, nan."""

    value: float
    error: float
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> Mean:
        error = math.nan
        if len(values) > 1:
            error = statistics.stdev(values) / math.sqrt(len(values))
        return Mean(statistics.fmean(values), error, len(values))

    @property
    def is_sure(self) -> bool:
        """It is not 0, with 95 %, as far as values are normal."""
        if self.count < 2:
            return False
        t = T_95[max(freedom for freedom in T_95 if freedom <= self.count - 1)]
        return abs(self.value) > t * self.error

    def text(self, digits: int = 2, sign: bool = False) -> str:
        number = f"{self.value:+.{digits}f}" if sign else f"{self.value:.{digits}f}"
        return f"{number} ± {self.error:.{digits}f}"


def difference(values: Sequence[float], others: Sequence[float]) -> Mean:
    """Of ``values`` from ``others``, seed by seed: both have had the same data and start."""
    return Mean.of([a - b for a, b in zip(values, others, strict=True)])


def verdict(found: Mean, unit: str = "points", digits: int = 2) -> str:
    """In words."""
    if not found.is_sure:
        return f"no difference beyond the spread ({found.text(digits, True)} {unit})"
    more = "more" if found.value > 0 else "less"
    return f"{abs(found.value):.{digits}f} {unit} {more} ({found.text(digits, True)})"


def listed(told: Sequence[tuple[str, Mean]], digits: int = 2) -> str:
    """Differences from several others, in words; those that say nothing are named together."""
    words = [
        f"{abs(d.value):.{digits}f} points {'more' if d.value > 0 else 'less'} than {name} "
        f"(± {d.error:.{digits}f})"
        for name, d in told
        if d.is_sure
    ]
    alike = [f"{name} ({d.text(digits, True)})" for name, d in told if not d.is_sure]
    if alike:
        words.append(f"no difference beyond the spread from {', '.join(alike)}")
    return "; ".join(words)


def named(told: Sequence[tuple[str, Mean]], digits: int = 2) -> str:
    """How far several lie from one that the sentence has named, in words."""
    words = [
        f"{name} {abs(d.value):.{digits}f} points {'more' if d.value > 0 else 'less'} "
        f"(± {d.error:.{digits}f})"
        for name, d in told
        if d.is_sure
    ]
    alike = [f"{name} ({d.text(digits, True)})" for name, d in told if not d.is_sure]
    if alike:
        words.append(f"no difference beyond the spread: {', '.join(alike)}")
    return "; ".join(words)
