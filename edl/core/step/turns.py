"""Which of several optimizers make their updates with which batch: a schedule that all follow.

Scripts choose by a count of their own (``if number % 5 == 0:`` in a loop over the batches), and a
newcomer begins to count with its first batch. So newcomers come in where the schedule begins anew.
"""

from __future__ import annotations

from collections.abc import Sequence

Turn = tuple[int, ...]  # the optimizers, as bits, that have made updates in each step of a batch

LONGEST = 32  # batches: a longer schedule is taken for one that does not repeat


def period(turns: Sequence[Turn]) -> int | None:
    """After how many batches the schedule begins anew; None: that is not known yet.

    ``turns``: those of the batches of this epoch so far. It must have been seen twice. 1 when it
    does not repeat itself: then all batches are alike good.
    """
    for length in range(1, min(LONGEST, len(turns) // 2) + 1):
        if all(turns[at] == turns[at - length] for at in range(length, len(turns))):
            return length
    return 1 if len(turns) >= 2 * LONGEST else None


def begins_anew(turns: Sequence[Turn], batch: int) -> bool:
    """Whether the schedule does so after the batch of that index, which follows ``turns``."""
    length = period(turns)
    return length is not None and (batch + 1) % length == 0
