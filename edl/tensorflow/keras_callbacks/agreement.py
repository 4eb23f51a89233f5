"""Build and read the rows of floats, equal in length, that workers exchange when an epoch ends.

:func:`metrics_row` and :func:`job_metrics` are for the means of numbers in the logs,
:func:`end_row` and :func:`met` for the stop and the files.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edl.core.step.mean import weighted_means
from edl.core.step.step_record import stopping
from edl.errors import UsageError

ROOM = 32  # for metrics in a row; with more of them, as much again


def metrics_row(worker: int, samples: int, metrics: Mapping[str, float]) -> list[float]:
    """Return the row with this worker's metrics of an epoch, for `job_metrics`."""
    # The zeros fill the room for metrics up to a multiple of `ROOM` (32), so that workers with
    # different metrics nearly always have rows of the same length.
    names = zlib.crc32("\n".join(metrics).encode())
    room = -(-max(len(metrics), 1) // ROOM) * ROOM
    filling = [0.0] * (room - len(metrics))
    return [worker, samples, names, *metrics.values(), *filling]


def job_metrics(rows: Sequence[Sequence[float]], names: Sequence[str]) -> dict[str, float]:
    """Return the means of metrics over the workers, by name, weighted with their samples."""
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
    """An agreement of all workers at the end of an epoch: the result of `met`."""

    stop: str  # why all stop; empty when they do not
    written: bool  # rank 0 had written what there was to write


def end_row(worker: int, wants_to_stop: bool, wrote: bool) -> list[float]:
    """Return the row that a worker sends at the end of an epoch, when its callbacks have run."""
    return [worker, float(wants_to_stop), float(wrote)]


def met(rows: Sequence[Sequence[float]]) -> Met:
    """Whether all workers stop training, and whether rank 0 has written the epoch's files"""
    stops, reason = stopping([int(row[0]) for row in rows if row[1]])
    return Met(stop=reason if stops else "", written=any(row[2] for row in rows))
