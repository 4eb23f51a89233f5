"""Audit logical workers: train each of them on two workers, and compare the bits of the results.

With the setting ``exact_audit`` = N, each worker trains in N steps the logical workers of its own
slice of the global batch, and after them those of the next worker's slice (:func:`repeated`). What
it computes for these counts for nothing. At the end of the step all workers add up their
:class:`AuditTable`, and compare the two results of each logical worker.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from edl.core.step.ledger import Ledger
from edl.core.step.spans import Span, common


class Pass(NamedTuple):
    """One pass of a logical worker in the open step."""

    logical: int  # the logical worker's number in the step, from 0
    repeats: bool  # it computes again what another worker has computed, and does not count


class AuditMismatch(NamedTuple):
    """The first value that two passes of the same logical worker have computed differently."""

    logical: int  # the logical worker's number in the step, from 0
    worker: int  # whose result counts
    repeated_by: int  # the worker that has computed it once more
    name: str

    def differing_newcomer(self, newcomers: Collection[int]) -> int | None:
        """Return the newcomer that must end, for it differs from an old worker; None: all end."""
        found = {self.worker, self.repeated_by} & set(newcomers)
        return found.pop() if len(found) == 1 and self.worker != self.repeated_by else None


class AuditResult(NamedTuple):
    """The result of the comparison of one step."""

    compared: int  # how many logical workers were trained twice
    on_two_workers: int  # how many of them by two workers, and not twice by the only one
    difference: AuditMismatch | None  # the first one


class AuditSteps:
    """The steps of a job that are audited; all workers of a ring hold the same."""

    def __init__(self, steps: int = 0) -> None:
        self._steps = steps
        self._begins = False  # with the next step
        self._remaining = 0  # steps, also while one is open that is not audited
        self._end = 0  # the number of the epoch's first global batch that is not audited
        self.members: Sequence[int] = ()  # of the ring, in rank order
        self.left = 0  # steps that are audited, from the open or next one on; 0: that one is not
        # the workers because of which steps are audited; empty at the beginning of a job
        self.newcomers: frozenset[int] = frozenset()

    def enter_ring(self, members: Sequence[int]) -> None:
        """Note the ids of the workers in a new ring, in rank order, before its next step."""
        if new := set(members) - set(self.members):
            self._begins = True
            self.newcomers = frozenset(new if self.members else ())
        self.members = members
        self._end = self.left = 0  # a step that goes on in a new ring is not audited

    def resume(self) -> None:
        """Begin a window with the next step, because the job goes on from a checkpoint."""
        self._begins = True

    def end_step(self) -> None:
        self._remaining -= self.left > 0
        self.left = 0

    def next_step(self, batch: int) -> None:
        """Decide whether the next step is audited; `batch` is its global batch in the epoch."""
        if self._begins:
            self._begins, self._remaining = False, self._steps
        self.left, self._end = self._remaining, batch + self._remaining

    def has(self, batch: int) -> bool:
        """Return whether the global batch with the number `batch` of the epoch is audited."""
        return batch < self._end

    def header(self) -> dict[str, Any]:
        """Return the state of the audit, as JSON values, to be sent with the job's state."""
        own = {"left": self.left, "remaining": self._remaining, "end": self._end}
        return {**own, "newcomers": sorted(self.newcomers)}

    def take_over(self, header: Mapping[str, Any]) -> None:
        """Audit the same steps as the state source, which has sent its `header()`."""
        self._begins, self.newcomers = False, frozenset(header["newcomers"])
        self.left, self._remaining = int(header["left"]), int(header["remaining"])
        self._end = int(header["end"])


def repeated(ledger: Ledger, worker: int, members: Sequence[int], batch: Span) -> tuple[Span, ...]:
    """Return what `worker` trains again of a global batch: the slice of the next that has one."""
    slices = [(each, common(ledger.held_by(each), [batch])) for each in members]
    trained = [(each, spans) for each, spans in slices if spans]
    own = next((place for place, (each, _) in enumerate(trained) if each == worker), None)
    return () if own is None else trained[(own + 1) % len(trained)][1]


class AuditTable:
    """The results of all passes of a step, as a list of numbers that all workers add up."""

    # Each pass has a row: the id of its worker plus 1, then a digest of each value. A worker fills
    # the rows of its own passes, and the others are 0: the sum of the lists has all rows.

    def __init__(self, logical: int, names: Sequence[str]) -> None:
        self._logical, self._names = logical, names
        self._width = 1 + len(names)

    def filled(self, worker: int, passes: Mapping[Pass, Mapping[str, int]]) -> list[float]:
        numbers = [0.0] * (2 * self._logical * self._width)
        for one, digests in passes.items():
            begin = self._row(one)
            numbers[begin] = float(worker + 1)
            for place, name in enumerate(self._names, begin + 1):
                if name in digests:  # at most 2**52, exact in a float64
                    numbers[place] = float(digests[name] + 1)
        return numbers

    def compare(self, numbers: Sequence[float]) -> AuditResult:
        """Compare both passes of each logical worker in `numbers`, the sum of all lists."""
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
        return (2 * one.logical + one.repeats) * self._width
