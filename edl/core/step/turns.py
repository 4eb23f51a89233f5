"""Which of several optimizers make their updates with which batch: a schedule that all follow.

Scripts choose by a count of their own (``if number % 5 == 0:`` in ``for number, batch in
enumerate(loader)``), and a newcomer begins to count with its first batch. So newcomers come in
where the schedule begins anew: with the epoch, or where it repeats itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

Turn = tuple[int, ...]  # the optimizers, as bits, that have made updates in each step of a batch

KEPT = 256  # turns of an epoch's first batches, to learn the schedule from
SEEN = 16  # batches, before a schedule is thought to be known


def period(turns: Sequence[Turn]) -> int | None:
    """After how many batches the schedule begins anew; None: it does not, or not yet twice."""
    for length in range(1, len(turns) // 2 + 1):
        if all(turns[at] == turns[at - length] for at in range(length, len(turns))):
            return length
    return None


@dataclass(frozen=True)
class Schedule:
    """The turns of an epoch so far. A value: each method returns a new one.

    Attributes:
        batch: the index in the epoch of the batch in hand, or of the next one.
        turn: of the batch in hand, as far as it has come.
        turns: of the epoch's first batches. Empty for a script with one optimizer.
        before: of the epoch before.
    """

    batch: int = 0
    turn: Turn = ()
    turns: tuple[Turn, ...] = ()
    before: tuple[Turn, ...] = ()

    def after_step(self, updated: int) -> Schedule:
        """These optimizers, as bits, have made their updates in a step of the batch in hand."""
        return replace(self, turn=(*self.turn, updated))

    def after_batch(self) -> Schedule:
        turns = (*self.turns, self.turn)[:KEPT] if self.turn else self.turns
        return replace(self, batch=self.batch + 1, turn=(), turns=turns)

    def next_epoch(self) -> Schedule:
        return Schedule(before=self.turns)

    def takes_newcomers(self, ends_epoch: bool) -> bool:
        """Whether one that begins to count after the batch in hand takes the turns of the others.

        The epoch before tells the schedule of this one as far as both are alike, but not its
        length, which the number of workers changes. A schedule that does not repeat itself in
        :data:`KEPT` batches is not waited for.

        Args:
            ends_epoch: the batch in hand is the last one of its epoch.
        """
        if ends_epoch:
            return True
        alike = self.before[: len(self.turns)] == self.turns
        known = self.before if alike else self.turns
        if len(known) < SEEN:
            return False
        length = period(known)
        return len(known) == KEPT if length is None else (self.batch + 1) % length == 0

    def snapshot(self) -> dict[str, Any]:
        """As JSON values, for newcomers, between two batches."""
        return {"batch": self.batch, "turns": self.turns, "before": self.before}

    @staticmethod
    def restore(snapshot: Mapping[str, Any]) -> Schedule:
        """The schedule of a snapshot."""
        turns, before = (
            tuple(tuple(turn) for turn in snapshot[name]) for name in ("turns", "before")
        )
        return Schedule(int(snapshot["batch"]), (), turns, before)
