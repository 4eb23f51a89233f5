"""Exchange messages among all workers, so that all get the same answer even if some die.

The answer of an exchange is the messages of all workers. When a ring breaks during an exchange,
some survivors may have the answer and others not. So each worker counts the exchanges that it has
completed, beside its steps and its leaves of an epoch with a batch in hand, and reports these
numbers when its ring breaks (:class:`edl.core.records.RingFailure`). The state source of the repair
is a survivor that has completed the most steps, then exchanges, then leaves. If it has the answer,
it sends the answer to all others together with its progress
(:meth:`edl.worker.loader_progress.LoaderProgress.header`,
:meth:`edl.worker.switching.Switching.synchronise_if_due`). If no survivor has the answer, the
survivors send their messages again, in the new ring.

A worker that had missed the step before the exchange gets the result of that step in the same
repair, and then comes to the exchange in its script as the others do.

:func:`exchange` does all this wherever it is called. How a broken ring is repaired depends on the
place of the call, and so is an argument. :func:`check_place` is for exchanges between two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from edl import failpoints
from edl.core.plural import workers
from edl.errors import RingBroken, UsageError
from edl.worker.loader_progress import LoaderProgress

OUT_OF_PLACE = (
    "workers exchange numbers between two steps: call edl.mean(), edl.gather() and the like after "
    "the update of a batch and before the next one, inside the loop over the epochs"
)


def exchange(
    payload: bytes,
    send: Callable[[bytes], list[bytes]],
    progress: LoaderProgress,
    repair: Callable[[RingBroken, float], None],
    now_s: Callable[[], float],
) -> list[bytes]:
    """Send `payload` to all workers; return all payloads in rank order, the same everywhere."""
    failpoints.reached("exchange")
    before = progress.exchanges
    while progress.exchanges == before:
        began = now_s()
        try:
            progress.exchanged(send(payload))
        except RingBroken as error:
            # If a survivor has the answer, this counts the exchange, too; else all send again.
            repair(error, began)
    failpoints.reached("exchanged")
    return progress.answer


def packed(values: Sequence[float]) -> bytes:
    """Return `values` as the payload of an exchange: eight bytes (float64) for each number."""
    return np.array(values, dtype=np.float64).tobytes()


def unpacked(answer: Sequence[bytes]) -> list[list[float]]:
    """Return the numbers of each worker from the payloads of an exchange, both in rank order."""
    rows: list[list[float]] = [np.frombuffer(payload).tolist() for payload in answer]
    if len(sizes := {len(row) for row in rows}) > 1:
        raise UsageError(
            f"the {workers(len(rows))} exchanged {', '.join(str(len(row)) for row in rows)} "
            f"numbers (from {min(sizes)} to {max(sizes)}); all must exchange the same at the same "
            "point of the script, in edl.mean() a dict with the same keys"
        )
    return rows


def check_place(progress: LoaderProgress) -> None:
    """Raise UsageError unless the training is between two steps."""
    why = None
    if progress.engine.is_open:
        why = "this batch is not trained yet"
        if progress.engine.batches.pieces > 1:
            why = f"{why}; it is one of several of a step, which is made when edl.step() has moved"
    elif not progress.has_state:
        why = "training has not begun"
    if why is not None:
        raise UsageError(f"{OUT_OF_PLACE}: {why}")
