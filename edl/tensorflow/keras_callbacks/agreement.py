"""What the workers exchange at the end of an epoch: rows of floats, equally long."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edl.core.step.mean import weighted_means
from edl.core.step.step_record import stopping
from edl.errors import UsageError

ROOM = 32  # for metrics in a row; with more of them, as much again


def metrics_row(worker: int, samples: int, metrics: Mapping[str, float]) -> list[float]:
    """This worker's ``metrics``, of an epoch in which it has trained ``samples``.

    Filled up, so that the rows of workers with other metrics are as long, as a rule.
    """
    names = zlib.crc32("\n".join(metrics).encode())
    room = -(-max(len(metrics), 1) // ROOM) * ROOM
    filling = [0.0] * (room - len(metrics))
    return [worker, samples, names, *metrics.values(), *filling]


def job_metrics(rows: Sequence[Sequence[float]], names: Sequence[str]) -> dict[str, float]:
    """The means over the workers, weighted with the samples that each has trained.

    Raises:
        UsageError: naming workers that have other metrics than the first of them.
    """
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
    """All workers have come to the end of an epoch and run its callbacks."""

    stop: str  # why all stop; empty when they do not
    written: bool  # rank 0 had written what there was to write


def end_row(worker: int, wants_to_stop: bool, wrote: bool) -> list[float]:
    """This worker has run its callbacks at the end of an epoch."""
    return [worker, float(wants_to_stop), float(wrote)]


def met(rows: Sequence[Sequence[float]]) -> Met:
    """What follows from the rows of :func:`end_row`."""
    stops, reason = stopping([int(row[0]) for row in rows if row[1]])
    return Met(stop=reason if stops else "", written=any(row[2] for row in rows))
