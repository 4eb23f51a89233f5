"""Send a small value from rank 0, or from all workers, to all, between two steps."""

from __future__ import annotations

from typing import Any

from edl.torch.gathering import exchange_objects

SAME_ORDER = (
    "all must log, evaluate and save after the same steps; a callback must decide by what is equal "
    "on all workers, such as state, metrics and logs"
)


def from_all(what: str, value: Any) -> list[Any]:
    """Return the pickled values of all workers in rank order; `what` names the script's call.

    Before and after the training, and in a warm-up, the answer is this worker's own value. If a
    worker dies meanwhile, the survivors get the same answer.
    """
    return exchange_objects(what, value, SAME_ORDER)


def from_rank_0(what: str, value: Any) -> Any:
    return from_all(what, value)[0]
