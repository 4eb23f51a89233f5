"""Decide whether a worker waits for another one whose script has ended: :func:`waits_for_ended`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edl.core.job.stall import FOR_COLLECTIVE, FOR_GRADIENTS, FOR_NUMBERS

UNSERVED_S = 3.0  # a collective of the script that waits so long lacks who has returned


def waits_for_ended(
    report: Mapping[str, Any], generation: int, step: int, exchanges: int, updates: int = 0
) -> str:
    """Return what a worker waits for from another one, whose script has ended; empty: nothing."""
    # `report` is its `/health` page; the numbers are of what the ended one has completed. In the
    # last step or exchange of these a worker waits for nobody, but needs the processor.
    doing, ring = report.get("activity", {}).get("doing"), report.get("ring", {})
    if ring.get("generation") != generation:
        return ""
    if doing == FOR_GRADIENTS and not updates and report.get("step", 0) >= step:
        return FOR_GRADIENTS
    if doing == FOR_NUMBERS and ring.get("exchanges", 0) > exchanges:
        return FOR_NUMBERS
    # Of an elastic script: whoever has returned has completed all of its own collectives.
    if doing in (FOR_GRADIENTS, FOR_COLLECTIVE) and ring.get("updates", 0) >= updates > 0:
        return FOR_COLLECTIVE
    return ""
