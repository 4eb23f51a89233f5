"""Which of several optimizers make their updates with which batch: a schedule that all follow.

Scripts choose by a count of their own (``if number % 5 == 0:`` in ``for number, batch in
enumerate(loader)``), and a newcomer begins to count with its first batch. So newcomers come in
where the rest of the epoch looks like its beginning.
"""

from __future__ import annotations

from collections.abc import Sequence

Turn = tuple[int, ...]  # the optimizers, as bits, that have made updates in each step of a batch

KEPT = 256  # turns of an epoch's first batches, to learn the schedule from
SEEN = 16  # batches, before a schedule is thought to be known in the first epoch


def period(turns: Sequence[Turn]) -> int | None:
    """After how many batches the schedule begins anew; None: it does not, or not yet twice."""
    for length in range(1, len(turns) // 2 + 1):
        if all(turns[at] == turns[at - length] for at in range(length, len(turns))):
            return length
    return None


def may_begin_after(batch: int, turns: Sequence[Turn], before: Sequence[Turn]) -> bool:
    """Whether a newcomer that begins to count after ``batch`` takes the turns that the others do.

    Args:
        batch: the index in its epoch of the batch in training.
        turns: those of the batches of this epoch so far, at most :data:`KEPT`.
        before: those of the epoch before; empty in the first one.

    A schedule that does not repeat itself, in :data:`KEPT` batches, is not waited for.
    """
    begins = batch + 1
    if before and len(before) < KEPT and [*turns] == [*before[: len(turns)]]:
        return [*before[begins:]] == [*before[: max(0, len(before) - begins)]]
    known = turns if len(turns) >= SEEN or not before else before
    length = period(known)
    if length is None:
        return len(known) >= KEPT
    return (len(known) >= SEEN or bool(before)) and begins % length == 0
