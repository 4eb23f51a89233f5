"""Decide which points of a log are written, so that each is written once (:func:`points_due`).

A point is a step and numbers by name. All workers compute each point, and one of them writes it. At
the next point they tell each other up to which step they have written, so a point that a worker did
not write before its death is written by its successor; and a step that is trained again, after a
restart from a checkpoint, is not written again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

NOTHING = -1  # the step before all steps


@dataclass(frozen=True)
class Point:
    """Numbers of the whole job at a step, by name."""

    step: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class LogSeries:
    """The points of one set of names, as a worker knows them.

    Attributes:
        written: the highest step of which this worker knows that its point was written.
        unconfirmed: the newest point of which it does not know that yet; None: there is none.
    """

    written: int = NOTHING
    unconfirmed: Point | None = None

    def having_written(self, step: int) -> LogSeries:
        """Return the series after this worker has written the point of ``step``."""
        return replace(self, written=max(self.written, step))


def points_due(
    series: LogSeries, written: Iterable[int], point: Point
) -> tuple[tuple[Point, ...], LogSeries]:
    """Return the points that the writing worker writes now, and the series from now on.

    The result is the same on all workers that have the same ``unconfirmed`` point.

    Args:
        series: what this worker knows.
        written: the highest written step that each worker knows, from all workers.
        point: the new point.

    Returns:
        At most two points, in the order of steps: the one before, if its writer has died before it
        wrote it, and the new one, unless its step was written before.
    """
    known = max([series.written, *written])
    before = series.unconfirmed
    candidates = [before] if before is not None and before.step < point.step else []
    due = tuple(one for one in (*candidates, point) if one.step > known)
    return due, LogSeries(known, point if point.step > known else None)
