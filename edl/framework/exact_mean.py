"""Compute means over all logical workers with the same bits, on any number of workers.

:func:`exact_means` does it for the gradients and buffers of a step, with the arrays of any
framework (:class:`ArrayKind`); :mod:`edl.framework.exact_sum` is how the sums are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from edl.core.step.aligned import AlignedSource
from edl.core.step.source import Source
from edl.core.step.step_record import StepRecords
from edl.errors import UsageError
from edl.framework.exact_sum import rounding_constant


class Summands(NamedTuple):
    """The summands of one mean that come from the logical workers of this worker."""

    target: Any  # an array, variable or description with the shape and type of the mean
    own: list[tuple[Any, float]]  # values, weight; the mean may take the memory of the first
    divisor: float  # of the sum over all workers
    counts: bool = True  # a mean that counts on no worker is not computed
    base: Any = None  # values, equal on all workers, that are summands on some of them


class ArrayKind(Protocol):
    """The arrays of one framework, of which exact means are computed; a complex number is two."""

    def largest(self, values: Sequence[Any]) -> list[float]:
        """Return for each array the largest absolute value in it that is finite, or 0.0."""

    def add_up(self, rows: Sequence[Summands], constants: Sequence[float]) -> Any:
        """Return this worker's sums, those of all rows in one float64 array, in order."""

    def means(self, rows: Sequence[Summands], sums: Any) -> list[Any]:
        """Return each row's part of `sums`, which may be overwritten, by its divisor."""


Together = Callable[[Any, str], Any]  # (array or floats, "sum" or "max"): that of all workers


def logical_workers_of_step(source: Source, records: StepRecords | None, total: int) -> int:
    """Return how many logical workers train in the open step, on all workers."""
    unit = source.batching.micro_batch  # in a warm-up, which has no records
    if records is not None and isinstance(source, AlignedSource):
        positions = records.column("position")
        unit = source.units.at(int(positions[positions >= 0].min()))
    return -(-total // unit)


def exact_means(
    rows: Sequence[Summands],
    pieces: int,  # logical workers that train in the step, on all workers
    alike: Sequence[tuple[int, str]],  # numbers below 2**53, and the error if they differ
    arrays: ArrayKind,
    together: Together,
) -> list[Any]:
    """Return the mean of each row over all logical workers; None where no worker's row counts."""
    bounds = together(_bounds(rows, arrays) + _doubled(alike), "max")
    _refuse_unlike(alike, bounds[len(rows) :])
    counting = [index for index in range(len(rows)) if bounds[index] >= 0.0]
    found = [rows[index] for index in counting]
    largest = _with_bases(found, [bounds[index] for index in counting], arrays)
    constants = [rounding_constant(bound, pieces) for bound in largest]
    sums = together(arrays.add_up(found, constants), "sum")
    means: list[Any] = [None] * len(rows)
    for index, mean in zip(counting, arrays.means(found, sums), strict=True):
        means[index] = mean
    return means


def check_alike(alike: Sequence[tuple[int, str]], together: Together) -> None:
    """Raise UsageError if a number differs between workers; see `exact_means`."""
    _refuse_unlike(alike, together(_doubled(alike), "max"))


def _doubled(alike: Sequence[tuple[int, str]]) -> list[float]:
    return [signed for number, _ in alike for signed in (float(number), -float(number))]


def _refuse_unlike(alike: Sequence[tuple[int, str]], largest: Sequence[float]) -> None:
    """Raise UsageError for a number whose largest value is not its smallest; see `_doubled`."""
    for index, (_, refusal) in enumerate(alike):
        if largest[2 * index] != -largest[2 * index + 1]:
            raise UsageError(refusal)


def _bounds(rows: Sequence[Summands], arrays: ArrayKind) -> list[float]:
    """Return for each row that counts the largest finite absolute value times weight, or -1.0."""
    own = [row.own if row.counts else [] for row in rows]
    largest = iter(arrays.largest([values for some in own for values, _ in some]))
    return [max((next(largest) * weight for _, weight in some), default=-1.0) for some in own]


def _with_bases(
    rows: Sequence[Summands], bounds: Sequence[float], arrays: ArrayKind
) -> list[float]:
    based = [index for index, row in enumerate(rows) if row.base is not None]
    found = [*bounds]
    largest = arrays.largest([rows[index].base for index in based])
    for index, one in zip(based, largest, strict=True):
        found[index] = max(found[index], one)
    return found
