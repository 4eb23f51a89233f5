"""An event of the job's log as one line for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edl.core.facts import Event


def tell(event: Event) -> str:
    """Generation, step, kind and reason; for a switch also how long each worker stood still."""
    line = f"generation {event.generation} step {event.step}: {event.kind}: {event.reason}"
    stalls = stalls_ms(event)
    if stalls:
        parts = ", ".join(f"{worker} {ms:.0f} ms" for worker, ms in stalls.items())
        line += f" (stall: {parts})"
    return line


def stalls_ms(event: Event) -> dict[str, float]:
    """Worker -> how long the switch held it up, in milliseconds; empty for other events."""
    workers = event.details.get("workers")
    if not isinstance(workers, Mapping):
        return {}
    stalls: dict[str, float] = {}
    for name, parts in sorted(workers.items(), key=lambda item: (len(item[0]), item[0])):
        value: Any = parts.get("stall_s") if isinstance(parts, Mapping) else None
        if isinstance(value, int | float):
            stalls[name] = 1000.0 * value
    return stalls
