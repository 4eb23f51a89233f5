"""Compute means over the samples of all workers from the means that each worker has."""

from __future__ import annotations

import math
from collections.abc import Sequence


def weighted_means(rows: Sequence[Sequence[float]]) -> list[float]:
    """Return the weighted mean of each column of ``rows`` but the first, which holds the weights.

    Each row is one worker's: its number of samples, then its values. A row of weight 0 is left
    out, even if it holds infinite values. The means are nan if all weights are 0.
    """
    counted = [row for row in rows if row[0] > 0]
    total = math.fsum(row[0] for row in counted)
    if total == 0:
        return [math.nan] * (len(rows[0]) - 1)
    return [
        sum(row[0] * row[column] for row in counted) / total for column in range(1, len(rows[0]))
    ]
