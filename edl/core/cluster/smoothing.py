"""Take noise out of predicted step times, as far as their known error says that it is noise.

A model whose answers are measurements errs in each of them, and anew at each decision.
:func:`averaged` takes the mean over decisions, and :func:`smoothed` the noise out of the means.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
Means = Mapping[str, Sequence[float]]
"""By what was measured: the mean of the logarithms of its times, and of how many."""

MOST_AVERAGED = 32  # then the oldest ones lose weight, as the true times may change


def averaged(
    step_s: Sequence[float], of: Sequence[Hashable], before: Means
) -> tuple[Vector, float, dict[str, list[float]]]:
    """Return the means of step times over decisions."""
    found: dict[str, list[float]] = {}
    for seconds, what in zip(step_s, of, strict=True):
        mean, count = before.get(str(what), (0.0, 0.0))
        count = min(count + 1, MOST_AVERAGED)
        found[str(what)] = [mean + (math.log(seconds) - mean) / count, count]
    means, counts = np.array(list(found.values())).T
    return np.exp(means), float(np.median(counts)), found


def smoothed(
    step_s: Vector, slots: Vector, nodes: Vector, batches: Vector, deviation: float
) -> tuple[Vector, float]:
    """Return step times that are nearer to the true ones, and the deviation of their logarithms."""
    terms = _terms(slots, nodes, batches)
    count, rank = len(step_s), int(np.linalg.matrix_rank(terms))
    if count < 2 * rank:
        return step_s, deviation
    logs = np.log(step_s)
    fitted = terms @ np.linalg.lstsq(terms, logs, rcond=None)[0]
    rest = logs - fitted
    variance = float(rest @ rest) / (count - rank)
    # James-Stein: towards the function by the part of the noise in the variance around it.
    kept = 1 - min(deviation**2, variance) / variance if variance else 0.0
    return np.exp(fitted + kept * rest), deviation * math.sqrt(kept + (1 - kept) * rank / count)


def _terms(slots: Vector, nodes: Vector, batches: Vector) -> Vector:
    """Return the terms of the function of `smoothed`, one column each."""
    k, b = np.log(slots), np.log(batches)
    # A single slot, and several nodes, synchronise in other ways.
    one, far = (slots == 1).astype(float), (nodes > 1).astype(float)
    columns = (np.ones(len(k)), k, k * k, b, b * b, k * b, one, far, one * b, far * b)
    return np.stack(columns, axis=1)
