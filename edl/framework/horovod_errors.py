"""How Horovod refuses a collective while the ring is intact (its controller.cc and common.h).

It uses the same exception as for a ring that broke, but a repair would only lead to the same
refusal.
"""

from __future__ import annotations

import re

from edl.errors import UsageError
from edl.ring.ring import CollectiveFailed

_REFUSAL = re.compile(r"Mismatched |with the same name as another|is not supported|tried to ")


def is_refusal(message: str) -> bool:
    """Whether this is what Horovod says when it would say the same in any ring."""
    return _REFUSAL.search(message) is not None


def classify_error(message: str) -> CollectiveFailed | UsageError:
    """What a collective that failed with ``message`` is to be raised as."""
    if is_refusal(message):
        return UsageError(f"{message} (every worker must build the same model)")
    return CollectiveFailed(message)
