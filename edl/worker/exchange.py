"""Messages that workers exchange, each with all others: the same answer on all, always.

The answer of an exchange that broke may be known to some survivors and not to others. So each
worker counts the exchanges that it has completed, beside its steps, and reports both when its
ring breaks (:class:`edl.core.records.RingFailure`). The state source of the repair is one that has
completed most, and its answer goes to all with its progress
(:meth:`edl.worker.loader_progress.LoaderProgress.header`,
:meth:`edl.worker.switching.Switching.synchronise`).
If nobody has it, the survivors exchange once more, in the new ring.

Whoever had missed the step before is brought to it by the same repair, and then comes to the
exchange in its script as the others do.

:func:`exchange` does all this wherever it is called. What a broken ring needs beside it depends on
the place, and so is an argument; :func:`check_place` is for exchanges between two steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from edl import failpoints
from edl.core.plural import workers
from edl.errors import RingBroken, UsageError
from edl.ring.ring import Ring
from edl.worker.loader_progress import LoaderProgress

OUT_OF_PLACE = (
    "workers exchange numbers between two steps: call edl.mean() after the update of a batch and "
    "before the next one, inside the loop over the epochs"
)


def exchange(
    payload: bytes,
    ring: Ring,
    progress: LoaderProgress,
    repair: Callable[[RingBroken, float], None],
    now_s: Callable[[], float],
) -> list[bytes]:
    """Return the payloads of all workers in rank order, the same on all, whoever dies meanwhile.

    Args:
        repair: goes on with the survivors; it is given the error, and since when this worker
            waited. It brings the answer if a survivor had it (``progress.exchanges`` has grown
            then); if nobody had, the survivors exchange once more.
        now_s: a monotonic clock.
    """
    failpoints.reached("exchange")
    before = progress.exchanges
    while progress.exchanges == before:
        began = now_s()
        try:
            progress.exchanged(ring.exchange(payload))
        except RingBroken as error:
            repair(error, began)
    failpoints.reached("exchanged")
    return progress.answer


def packed(values: Sequence[float]) -> bytes:
    """Return numbers as the payload of an exchange."""
    return np.array(values, dtype=np.float64).tobytes()


def unpacked(answer: Sequence[bytes]) -> list[list[float]]:
    """Return the numbers that each worker has sent, in rank order.

    Raises:
        UsageError: some have sent more than others.
    """
    rows: list[list[float]] = [np.frombuffer(payload).tolist() for payload in answer]
    if len(sizes := {len(row) for row in rows}) > 1:
        raise UsageError(
            f"the {workers(len(rows))} exchanged {', '.join(str(len(row)) for row in rows)} "
            f"numbers (from {min(sizes)} to {max(sizes)}); all must exchange the same at the same "
            "point of the script, in edl.mean() a dict with the same keys"
        )
    return rows


def check_place(progress: LoaderProgress) -> None:
    """Make sure that the training is between two steps.

    Raises:
        UsageError: it is not.
    """
    why = None
    if progress.step_input.is_open:
        why = "this batch is not trained yet"
    elif not progress.has_state:
        why = "training has not begun"
    if why is not None:
        raise UsageError(f"{OUT_OF_PLACE}: {why}")
