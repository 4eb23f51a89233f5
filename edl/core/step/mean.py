"""Compute means over all workers' samples from each worker's means."""

from __future__ import annotations

import math
from collections.abc import Sequence


def weighted_means(rows: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean of each column of `rows` but the first, weighted by the first column."""
    counted = [row for row in rows if row[0] > 0]  # a row of weight 0 may hold infinite values
    total = math.fsum(row[0] for row in counted)
    if total == 0:
        return [math.nan] * (len(rows[0]) - 1)
    return [
        sum(row[0] * row[column] for row in counted) / total for column in range(1, len(rows[0]))
    ]
