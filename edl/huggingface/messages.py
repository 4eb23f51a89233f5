"""Send a small value from rank 0, or from all workers, to all, between two steps."""

from __future__ import annotations

from typing import Any

from edl.torch.objects import exchange_objects

SAME_ORDER = (
    "all must log, evaluate and save after the same steps; a callback must decide by what is equal "
    "on all workers, such as state, metrics and logs"
)


def from_all(what: str, value: Any) -> list[Any]:
    """Return the values of all workers, in rank order; all call it at the same point.

    The call is between two steps of the training: before and after it, and in a warm-up, the answer
    is this worker's own value. If a worker dies meanwhile, the survivors get the same answer.

    Args:
        what: the call of the script, for the error message.
        value: what this worker sends; it is pickled.

    Raises:
        UsageError: another worker is at another call, or the gradients of the open step are reduced
            already.
    """
    return exchange_objects(what, value, SAME_ORDER)


def from_rank_0(what: str, value: Any) -> Any:
    """Return the value of rank 0 on all workers; all call it at the same point.

    Args:
        what: the call of the script, for the error message.
        value: what this worker would send as rank 0; it is pickled.

    Raises:
        UsageError: as :func:`from_all`.
    """
    return from_all(what, value)[0]
