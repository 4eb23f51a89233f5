"""Send a small value from rank 0, or from all workers, to all, between two steps."""

from __future__ import annotations

from typing import Any

from edl.torch.objects import exchange_objects

SAME_ORDER = (
    "all must log, evaluate and save after the same steps; a callback must decide by what is equal "
    "on all workers, such as state, metrics and logs"
)


def from_all(what: str, value: Any) -> list[Any]:
    """Return the values of all workers, in rank order; all call it at the same point."""
    return exchange_objects(what, value, SAME_ORDER)


def from_rank_0(what: str, value: Any) -> Any:
    """Return the value of rank 0 on all workers; all call it at the same point."""
    # `value`: what this worker would send as rank 0; it is pickled.
    return from_all(what, value)[0]
