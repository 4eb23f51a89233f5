"""Learn which of several optimizers update with which batch: a schedule that all workers follow.

Scripts choose by a count of their own (``if number % 5 == 0:`` in ``for number, batch in
enumerate(loader)``), and a newcomer begins to count with its first batch. So newcomers join at a
batch with which the schedule begins again: the first one of an epoch, or of a period. A worker
keeps an :class:`UpdateOrder`, whose :meth:`~UpdateOrder.takes_newcomers` says where that is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

Updates = tuple[int, ...]  # the optimizers, as bits, that have made updates in each step of a batch

KEPT = 256  # first batches of an epoch from which the schedule is learned
SEEN = 16  # batches before a schedule counts as known


def period(turns: Sequence[Updates]) -> int | None:
    """Return after how many batches a schedule of updates repeats itself."""
    for length in range(1, len(turns) // 2 + 1):
        if all(turns[at] == turns[at - length] for at in range(length, len(turns))):
            return length
    return None


@dataclass(frozen=True)
class UpdateOrder:
    """The order in which several optimizers made updates in an epoch so far; an immutable value."""

    batch: int = 0  # index in the epoch of the present batch; between two, of the next one
    updates: Updates = ()  # of the present batch; () if no step of it is complete
    # of the epoch's first `KEPT` batches that have ended; empty for a script with one optimizer
    of_batches: tuple[Updates, ...] = ()
    before: tuple[Updates, ...] = ()  # `of_batches` of the epoch before

    def after_step(self, updated: int) -> UpdateOrder:
        """Return the order with one more complete step of the present batch."""
        return replace(self, updates=(*self.updates, updated))

    def after_batch(self) -> UpdateOrder:
        """Return the order after the present batch has ended: `batch` is the next one's index."""
        turns = (*self.of_batches, self.updates)[:KEPT] if self.updates else self.of_batches
        return replace(self, batch=self.batch + 1, updates=(), of_batches=turns)

    def next_epoch(self) -> UpdateOrder:
        return UpdateOrder(before=self.of_batches)

    def takes_newcomers(self, ends_epoch: bool) -> bool:
        """Return whether a newcomer may join after the present batch."""
        # A newcomer counts its batches from 0, so it may join where the schedule begins again.
        if ends_epoch:
            return True
        alike = self.before[: len(self.of_batches)] == self.of_batches
        known = self.before if alike else self.of_batches  # that one is longer
        if len(known) < SEEN:
            return False
        length = period(known)
        return len(known) == KEPT if length is None else (self.batch + 1) % length == 0

    def snapshot(self) -> dict[str, Any]:
        """Return the order as JSON values, to be sent to newcomers between two batches."""
        # `updates` is empty between two batches.
        return {"batch": self.batch, "turns": self.of_batches, "before": self.before}

    @staticmethod
    def restore(snapshot: Mapping[str, Any]) -> UpdateOrder:
        turns, before = (
            tuple(tuple(turn) for turn in snapshot[name]) for name in ("turns", "before")
        )
        return UpdateOrder(int(snapshot["batch"]), (), turns, before)
