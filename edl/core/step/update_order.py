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
    """Return after how many batches a schedule of updates repeats itself.

    Args:
        turns: for each batch of an epoch in order, the optimizers that made updates in each of its
            steps, as bits: bit k stands for optimizer k.

    Returns:
        The smallest p, at most half the length of ``turns``, for which each entry from number p on
        is equal to the entry p before it. None if there is no such p.
    """
    for length in range(1, len(turns) // 2 + 1):
        if all(turns[at] == turns[at - length] for at in range(length, len(turns))):
            return length
    return None


@dataclass(frozen=True)
class UpdateOrder:
    """The order in which several optimizers made updates in an epoch so far; an immutable value.

    ``UpdateOrder()`` is the order before the first batch of the first epoch. Each method returns a
    new value, and changes nothing.

    An entry stands for one batch: for each of its steps, the optimizers that made updates, as bits
    (bit k stands for optimizer k).

    Attributes:
        batch: the index in the epoch, from 0, of the present batch; between two batches, of the
            next one.
        updates: the entry of the present batch, as far as it has been trained; () if no step of it
            is complete.
        of_batches: the entries of the epoch's first :data:`KEPT` (256) batches that have ended;
            those of later batches are dropped. Empty for a script with one optimizer.
        before: ``of_batches`` of the epoch before.
    """

    batch: int = 0
    updates: Updates = ()
    of_batches: tuple[Updates, ...] = ()
    before: tuple[Updates, ...] = ()

    def after_step(self, updated: int) -> UpdateOrder:
        """Return the order with one more complete step of the present batch.

        ``updated`` says which optimizers made updates in that step, as bits: bit k stands for
        optimizer k.
        """
        return replace(self, updates=(*self.updates, updated))

    def after_batch(self) -> UpdateOrder:
        """Return the order after the present batch has ended: ``batch`` is the next one's index.

        The entry of the batch is appended to ``of_batches``, unless that has :data:`KEPT` entries
        or no step of the batch was noted.
        """
        turns = (*self.of_batches, self.updates)[:KEPT] if self.updates else self.of_batches
        return replace(self, batch=self.batch + 1, updates=(), of_batches=turns)

    def next_epoch(self) -> UpdateOrder:
        """Return the order at the beginning of the next epoch.

        Its ``before`` is the present ``of_batches``; nothing else is kept.
        """
        return UpdateOrder(before=self.of_batches)

    def takes_newcomers(self, ends_epoch: bool) -> bool:
        """Return whether a newcomer may join after the present batch, by the schedule of updates.

        A newcomer counts its batches from 0 and must follow the same schedule as the other workers,
        so it may join where the schedule begins again. If this epoch has begun like the epoch
        before, the schedule is read from that one. While fewer than :data:`SEEN` (16) batches are
        known, or no period is seen in them, a newcomer joins only at the end of the epoch. If the
        schedule has no period in :data:`KEPT` (256) batches, it may join after any batch. The
        answer is for a script with several optimizers only.

        Args:
            ends_epoch: whether the present batch is the last one of its epoch.
        """
        if ends_epoch:
            return True
        alike = self.before[: len(self.of_batches)] == self.of_batches
        known = self.before if alike else self.of_batches
        if len(known) < SEEN:
            return False
        length = period(known)
        return len(known) == KEPT if length is None else (self.batch + 1) % length == 0

    def snapshot(self) -> dict[str, Any]:
        """Return the order as JSON values, to be sent to newcomers between two batches.

        ``updates`` is left out, because it is empty between two batches.
        """
        return {"batch": self.batch, "turns": self.of_batches, "before": self.before}

    @staticmethod
    def restore(snapshot: Mapping[str, Any]) -> UpdateOrder:
        """Return the order that ``snapshot``, a result of :meth:`snapshot`, describes."""
        turns, before = (
            tuple(tuple(turn) for turn in snapshot[name]) for name in ("turns", "before")
        )
        return UpdateOrder(int(snapshot["batch"]), (), turns, before)
