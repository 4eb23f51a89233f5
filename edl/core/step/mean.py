"""The mean over the samples of several workers, of numbers that each has for its own."""

from __future__ import annotations

import math
from collections.abc import Sequence


def weighted_means(rows: Sequence[Sequence[float]]) -> list[float]:
    """The means of all columns but the first, which has the weights: the samples behind a row.

    A row of weight 0 does not enter, whatever it says. Without any weight there is no mean: nan.
    """
    counted = [row for row in rows if row[0] > 0]
    total = math.fsum(row[0] for row in counted)
    if total == 0:
        return [math.nan] * (len(rows[0]) - 1)
    return [
        sum(row[0] * row[column] for row in counted) / total for column in range(1, len(rows[0]))
    ]
