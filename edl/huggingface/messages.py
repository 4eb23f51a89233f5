"""Send a small value from rank 0 to all workers, between two steps."""

from __future__ import annotations

import json
from typing import Any

from edl.torch.api import exchange


def from_all(value: Any) -> list[Any]:
    """Return the values of all workers, in rank order; all call it at the same point.

    The call is between two steps of the training: before and after it, and in a warm-up, the answer
    is this worker's own value. If a worker dies meanwhile, the survivors get the same answer.

    Args:
        value: what JSON can hold.

    Raises:
        UsageError: the gradients of the open step are reduced already.
    """
    return [json.loads(one) for one in exchange(json.dumps(value).encode())]


def from_rank_0(value: Any) -> Any:
    """Return the value of rank 0 on all workers; all call it at the same point.

    Args:
        value: what JSON can hold; the values of the other workers are not used.

    Raises:
        UsageError: the gradients of the open step are reduced already.
    """
    return from_all(value)[0]
