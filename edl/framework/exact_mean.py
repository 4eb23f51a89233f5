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
    """The summands of one mean that come from the logical workers of this worker.

    Attributes:
        target: an array, variable or description with the shape and type of the mean.
        own: pairs of values and weight, one for each logical worker; empty: this worker has none.
            The mean may take the memory of the first values.
        divisor: the sum over all workers is divided by this.
        counts: whether the mean is needed because of these summands. If it is on no worker, it is
            not computed.
        base: values, equal on all workers, that are summands on some of them; None: there are none.
    """

    target: Any
    own: list[tuple[Any, float]]
    divisor: float
    counts: bool = True
    base: Any = None


class ArrayKind(Protocol):
    """The interface to the arrays of one framework, of which exact means are computed.

    Where a sum is made of arrays, it is of their elements; a complex number counts as two.
    """

    def largest(self, values: Sequence[Any]) -> list[float]:
        """Return for each array the largest absolute value in it that is finite, or 0.0."""

    def add_up(self, rows: Sequence[Summands], constants: Sequence[float]) -> Any:
        """Return this worker's sums, those of all rows in one float64 array, in order.

        Args:
            rows: the summands of each mean; a row without summands has sums of 0.
            constants: for each row, the constant that rounds its summands, see
                :mod:`edl.framework.exact_sum`.
        """

    def means(self, rows: Sequence[Summands], sums: Any) -> list[Any]:
        """Return the mean of each row: its part of ``sums``, divided by its divisor.

        A mean has the shape and type of its row's target. If the type is that of integers, it is
        rounded to the nearest one. ``sums`` may be overwritten.
        """


Together = Callable[[Any, str], Any]


def logical_workers_of_step(source: Source, records: StepRecords | None, total: int) -> int:
    """Return how many logical workers train in the open step, on all workers.

    Args:
        source: the data of the job.
        records: the records of the step, of all workers; None in a warm-up.
        total: the samples of the step, on all workers.
    """
    unit = source.batching.micro_batch
    if records is not None and isinstance(source, AlignedSource):
        positions = records.column("position")
        unit = source.units.at(int(positions[positions >= 0].min()))
    return -(-total // unit)


def exact_means(
    rows: Sequence[Summands],
    pieces: int,
    alike: Sequence[tuple[int, str]],
    arrays: ArrayKind,
    together: Together,
) -> list[Any]:
    """Return the mean of each row over all logical workers of the step.

    All workers call it with the same targets in the same order. If the ring breaks, the rows are as
    before.

    Args:
        rows: what this worker adds up.
        pieces: the number of logical workers that train in the step, on all workers.
        alike: pairs of a whole number below 2**53, which has to be the same on all workers, and the
            message of the error if it is not.
        arrays: the arrays of the framework.
        together: a function that returns the element-wise sum ("sum") or largest ("max") of all
            workers' arrays, for one of ``arrays`` or a list of floats, which it may overwrite. An
            array that it returns is overwritten here.

    Returns:
        The means, in order; None where no worker has summands that count.

    Raises:
        RingBroken: ``together`` has raised it.
        UsageError: a number of ``alike`` differs.
    """
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
    """Raise UsageError if a number differs between workers; see :func:`exact_means`.

    All workers call it.

    Raises:
        RingBroken: ``together`` has raised it.
        UsageError: a number differs.
    """
    _refuse_unlike(alike, together(_doubled(alike), "max"))


def _doubled(alike: Sequence[tuple[int, str]]) -> list[float]:
    """Return each number and its negative, of which the largest say whether all are equal."""
    return [signed for number, _ in alike for signed in (float(number), -float(number))]


def _refuse_unlike(alike: Sequence[tuple[int, str]], largest: Sequence[float]) -> None:
    """Raise UsageError for a number that differs.

    ``largest`` has the largest numbers of all workers' :func:`_doubled`.
    """
    for index, (_, refusal) in enumerate(alike):
        if largest[2 * index] != -largest[2 * index + 1]:
            raise UsageError(refusal)


def _bounds(rows: Sequence[Summands], arrays: ArrayKind) -> list[float]:
    """Return for each row the largest finite absolute value times its weight.

    It is -1.0 for a row that does not count, or has no summands.
    """
    own = [row.own if row.counts else [] for row in rows]
    largest = iter(arrays.largest([values for some in own for values, _ in some]))
    return [max((next(largest) * weight for _, weight in some), default=-1.0) for some in own]


def _with_bases(
    rows: Sequence[Summands], bounds: Sequence[float], arrays: ArrayKind
) -> list[float]:
    """Return the bounds of rows, or the largest values of their bases where those are larger."""
    based = [index for index, row in enumerate(rows) if row.base is not None]
    found = [*bounds]
    largest = arrays.largest([rows[index].base for index in based])
    for index, one in zip(based, largest, strict=True):
        found[index] = max(found[index], one)
    return found
