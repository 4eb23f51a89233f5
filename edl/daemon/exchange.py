"""Numbers that workers exchange between two steps: the same answer on all, always.

The answer of an exchange that broke may be known to some survivors and not to others. So each
worker counts the exchanges that it has completed, beside its steps, and reports both when its
ring breaks (:class:`edl.core.records.RingFailure`). The sync root of the repair is one that has
completed most, and its answer goes to all with its progress
(:meth:`edl.daemon.loader_progress.LoaderProgress.header`).
If nobody has it, the survivors exchange once more, in the new ring.

Who had missed the step before is brought to it by the same repair, and then comes to the exchange
in its script as the others do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edl import failpoints
from edl.daemon.loader_progress import LoaderProgress
from edl.errors import RingBroken, UsageError
from edl.ring.ring import Ring

OUT_OF_PLACE = (
    "workers exchange numbers between two steps: call edl.mean() after the update of a batch and "
    "before the next one, inside the loop over the epochs"
)


def exchange(
    values: Sequence[float],
    ring: Ring,
    progress: LoaderProgress,
    repair: Callable[[RingBroken, float], None],
    now_s: Callable[[], float],
) -> list[list[float]]:
    """Everybody's ``values`` in rank order.

    Args:
        repair: goes on with the survivors; it is given since when this worker waited.
        now_s: a monotonic clock.
    """
    mine = [float(value) for value in values]
    failpoints.reached("exchange")
    before = progress.exchanges
    while progress.exchanges == before:
        began = now_s()
        try:
            progress.exchanged(ring.exchange(mine))
        except RingBroken as error:
            repair(error, began)
    failpoints.reached("exchanged")
    return progress.last_exchange


def check_place(progress: LoaderProgress) -> None:
    """Make sure that the training is between two steps.

    Raises:
        UsageError: it is not.
    """
    why = None
    if progress.open_step.is_open:
        why = "this batch is not trained yet"
    elif not progress.has_state:
        why = "training has not begun"
    if why is not None:
        raise UsageError(f"{OUT_OF_PLACE}: {why}")
