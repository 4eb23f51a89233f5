"""How Horovod refuses a collective while the ring is intact (its controller.cc and common.h).

It uses the same exception as for a ring that broke, but a repair would only lead to the same
refusal.
"""

from __future__ import annotations

import re

from edl.errors import UsageError
from edl.framework.horovod_absent import ADASUM
from edl.ring.ring import CollectiveFailed

_REFUSAL = re.compile(
    r"Mismatched |with the same name as another|is not supported|tried to |No \w+ operation enabled"
)
_NO_ADASUM = "No Adasum operation enabled"


def refusal(message: str, hint: str) -> UsageError | None:
    """For what Horovod says when it would say the same in any ring; None: something else failed.

    ``hint``: what every worker must do.
    """
    if _NO_ADASUM in message:
        return UsageError(f"op=Adasum is not there: {ADASUM}")
    if _REFUSAL.search(message) is not None:
        return UsageError(f"{message} (every worker must {hint})")
    return None


def classify_error(message: str) -> CollectiveFailed | UsageError:
    """What a collective that failed with ``message`` is to be raised as."""
    return refusal(message, "build the same model") or CollectiveFailed(message)
