"""Build and read the rows of floats, equal in length, that workers exchange when an epoch ends.

One has the worker's id, its samples, a checksum of the metrics' names in order, the metrics, and
zeros; the other its id, whether it wants to stop, and whether it is rank 0 and has written files.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edl.errors import UsageError
from edl.step.record import stopping
from edl.step.weighting import weighted_means

ROOM = 32  # for metrics in a row; with more of them, as much again


def metrics_row(worker: int, samples: int, metrics: Mapping[str, float]) -> list[float]:
    names = zlib.crc32("\n".join(metrics).encode())
    # So workers with different metrics nearly always have rows of one length.
    room = -(-max(len(metrics), 1) // ROOM) * ROOM
    filling = [0.0] * (room - len(metrics))
    return [worker, samples, names, *metrics.values(), *filling]


def job_metrics(rows: Sequence[Sequence[float]], names: Sequence[str]) -> dict[str, float]:
    """Return the means over the workers, weighted with their samples; `names` are this worker's."""
    odd = [f"w{row[0]:.0f}" for row in rows if row[2] != rows[0][2]]
    if odd:
        raise UsageError(
            f"the metrics of {', '.join(odd)} are not those of w{rows[0][0]:.0f}; give all workers "
            f"the same metrics and the same validation_data (here: {', '.join(names)})"
        )
    means = weighted_means([[row[1], *row[3:]] for row in rows])
    return dict(zip(names, means, strict=False))  # what follows is the filling


@dataclass(frozen=True)
class Met:
    """An agreement of all workers at the end of an epoch."""

    stop: str  # why all stop; empty when they do not
    written: bool  # rank 0 had written what there was to write


def end_row(worker: int, wants_to_stop: bool, wrote: bool) -> list[float]:
    return [worker, float(wants_to_stop), float(wrote)]


def met(rows: Sequence[Sequence[float]]) -> Met:
    """Return what the rows of all workers say: all stop if one wants to."""
    stops, reason = stopping([int(row[0]) for row in rows if row[1]])
    return Met(stop=reason if stops else "", written=any(row[2] for row in rows))
