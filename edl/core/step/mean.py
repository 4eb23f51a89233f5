"""Compute means over all workers' samples from each worker's means: :func:`weighted_means`."""

from __future__ import annotations

import math
from collections.abc import Sequence


def weighted_means(rows: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean of each column of ``rows`` but the first, weighted by the first column.

    Each row is one worker's: its number of samples, then its values; there is at least one row. A
    row of weight 0 is left out, even if it holds infinite values. The result has one item less than
    a row. Its items are nan if all weights are 0.
    """
    counted = [row for row in rows if row[0] > 0]
    total = math.fsum(row[0] for row in counted)
    if total == 0:
        return [math.nan] * (len(rows[0]) - 1)
    return [
        sum(row[0] * row[column] for row in counted) / total for column in range(1, len(rows[0]))
    ]
