"""Compute means over all logical workers with the same bits, on any number of workers.

:func:`exact_means` does it for the gradients and buffers of a step, with the arrays of any
framework (:class:`ArrayKind`); :mod:`edl.framework.exact_sum` is how the sums are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from edl.errors import UsageError
from edl.framework.exact_sum import add_rounded, rounding_constant


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
    """The interface to the arrays of one framework, of which exact means are computed."""

    def size(self, target: Any) -> int:
        """Return the number of elements of ``target``; a complex number counts as two."""

    def flat(self, values: Any) -> Any:
        """Return ``values`` as real numbers in one dimension."""

    def largest(self, values: Any) -> float:
        """Return the largest absolute value in ``values`` that is finite; 0.0 if none is."""

    def memory(self, size: int, targets: Sequence[Any]) -> tuple[Any, Any]:
        """Return two uninitialised float64 arrays of one dimension.

        Args:
            size: the number of elements of the first one. The second one has as many, but at most
                so many as are rounded at once (:data:`edl.framework.exact_sum.CHUNK` on a CPU).
            targets: what the sums are computed for, where the framework has several devices.
        """

    def mean(self, row: Summands, total: Any) -> Any:
        """Return ``total``, a float64 array that may be overwritten, as the mean of ``row``.

        It is divided by the row's divisor, and has the shape and type of its target. If the type is
        that of integers, the mean is rounded to the nearest one.
        """


Together = Callable[[Any, str], Any]


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
    bounds = [_largest(row, arrays) if row.counts else -1.0 for row in rows]
    for number, _ in alike:
        bounds += [float(number), -float(number)]
    bounds = together(bounds, "max")
    for index, (_, refusal) in enumerate(alike):
        most, least = bounds[len(rows) + 2 * index], -bounds[len(rows) + 2 * index + 1]
        if most != least:
            raise UsageError(refusal)
    found = [
        (row, bound if row.base is None else max(bound, arrays.largest(row.base)))
        for row, bound in zip(rows, bounds[: len(rows)], strict=True)
        if bound >= 0.0
    ]
    totals = iter(_totals(found, pieces, arrays, together))
    return [
        arrays.mean(row, next(totals)) if bound >= 0.0 else None
        for row, bound in zip(rows, bounds[: len(rows)], strict=True)
    ]


def _totals(
    found: Sequence[tuple[Summands, float]], pieces: int, arrays: ArrayKind, together: Together
) -> list[Any]:
    """Return the exact sum over all workers of each of ``found``.

    Args:
        found: pairs of summands, and the largest of them on any worker, in absolute value.
        pieces: how many summands each sum has at most, over all workers.
        arrays: the arrays of the framework.
        together: as for :func:`exact_means`.
    """
    targets = [row.target for row, _ in found]
    sizes = [arrays.size(target) for target in targets]
    sums, scratch = arrays.memory(sum(sizes), targets)
    begin = 0
    for (row, bound), size in zip(found, sizes, strict=True):
        own = [(arrays.flat(values), weight) for values, weight in row.own]
        add_rounded(sums[begin : begin + size], own, rounding_constant(bound, pieces), scratch)
        begin += size
    sums, begin, totals = together(sums, "sum"), 0, []
    for size in sizes:
        totals.append(sums[begin : begin + size])
        begin += size
    return totals


def _largest(row: Summands, arrays: ArrayKind) -> float:
    """Return the largest finite absolute value times its weight; -1.0 without summands."""
    return max((arrays.largest(values) * weight for values, weight in row.own), default=-1.0)
