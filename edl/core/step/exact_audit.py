"""Audit logical workers: train each of them on two workers, and compare the bits of the results.

With the setting ``exact_audit`` = N, each worker trains in N steps the logical workers of its own
slice of the global batch, and after them those of the next worker's slice (:func:`repeated`). What
it computes for these counts for nothing. At the end of the step all workers add up their
:class:`AuditTable`, and compare the two results of each logical worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from edl.core.step.ledger import Ledger
from edl.core.step.spans import Span, common


class Pass(NamedTuple):
    """One pass of a logical worker in the open step.

    Attributes:
        logical: the number of the logical worker in the step, from 0.
        repeats: False: the pass counts; True: it repeats one that another worker has computed.
    """

    logical: int
    repeats: bool


class AuditMismatch(NamedTuple):
    """The first value that two passes of the same logical worker have computed differently.

    Attributes:
        logical: the number of the logical worker in the step, from 0.
        worker: the id of the worker whose result counts.
        repeated_by: the id of the worker that has computed it once more.
        name: the name of the value.
    """

    logical: int
    worker: int
    repeated_by: int
    name: str


class AuditResult(NamedTuple):
    """The result of the comparison of one step.

    Attributes:
        compared: how many logical workers were trained twice.
        on_two_workers: how many of them by two workers, and not twice by the only one.
        difference: the first difference; None: there is none.
    """

    compared: int
    on_two_workers: int
    difference: AuditMismatch | None


def repeated(ledger: Ledger, worker: int, members: Sequence[int], batch: Span) -> tuple[Span, ...]:
    """Return the positions of a global batch that ``worker`` trains a second time.

    They are those of the next worker, in rank order, of all that train some of the batch; if it is
    the only one, its own. A worker that trains none of the batch repeats none.

    Args:
        ledger: the ledger of the epoch, with the leases of all workers.
        worker: the id of the worker.
        members: the ids of the workers in the ring, in rank order.
        batch: the positions of the global batch, as (start, stop).
    """
    slices = [(each, common(ledger.held_by(each), [batch])) for each in members]
    trained = [(each, spans) for each, spans in slices if spans]
    own = next((place for place, (each, _) in enumerate(trained) if each == worker), None)
    return () if own is None else trained[(own + 1) % len(trained)][1]


class AuditTable:
    """The results of all passes of a step, as a list of numbers that all workers add up.

    Each pass has a row: the id of its worker plus 1, and a digest of each value that it has
    computed. A worker fills the rows of its own passes, and all others are 0; so the element-wise
    sum of the workers' lists has all rows.

    Args:
        logical: the number of logical workers that train in the step.
        names: the names of the values, the same on all workers and in the same order.
    """

    def __init__(self, logical: int, names: Sequence[str]) -> None:
        self._logical, self._names = logical, names
        self._width = 1 + len(names)

    def filled(self, worker: int, passes: Mapping[Pass, Mapping[str, int]]) -> list[float]:
        """Return the list of one worker.

        Args:
            worker: the id of the worker.
            passes: for each of its passes the digests, whole numbers from 0 to 2**52, by the names
                of the values; a pass that has not computed a value has none for it.
        """
        numbers = [0.0] * (2 * self._logical * self._width)
        for one, digests in passes.items():
            begin = self._row(one)
            numbers[begin] = float(worker + 1)
            for place, name in enumerate(self._names, begin + 1):
                if name in digests:
                    numbers[place] = float(digests[name] + 1)
        return numbers

    def compare(self, numbers: Sequence[float]) -> AuditResult:
        """Compare both passes of each logical worker in ``numbers``, the sum of all lists.

        A logical worker that has no second pass is left out.
        """
        compared = apart = 0
        for logical in range(self._logical):
            first, second = (self._row(Pass(logical, repeats)) for repeats in (False, True))
            worker, by = int(numbers[first]) - 1, int(numbers[second]) - 1
            if worker < 0 or by < 0:
                continue
            compared, apart = compared + 1, apart + (worker != by)
            for place, name in enumerate(self._names, 1):
                if numbers[first + place] != numbers[second + place]:
                    difference = AuditMismatch(logical, worker, by, name)
                    return AuditResult(compared, apart, difference)
        return AuditResult(compared, apart, None)

    def _row(self, one: Pass) -> int:
        """Return the index of the first number of the row of ``one``."""
        return (2 * one.logical + one.repeats) * self._width
