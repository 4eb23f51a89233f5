"""An event of the job's log as one line for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edl.core.records import Event

RECOVERY = ("detect", "election", "roll_call", "init", "broadcast")


def describe(event: Event) -> str:
    """Generation, step, kind and reason; for a switch also what it cost."""
    line = f"generation {event.generation} step {event.step}: {event.kind}: {event.reason}"
    told = cost(event)
    return f"{line} ({told})" if told else line


def cost(event: Event) -> str:
    """How long a switch held each worker up; of a repair, also the parts of the longest stall.

    Empty for other events.
    """
    workers = _workers(event)
    if not workers:
        return ""
    told = "stall " + ", ".join(f"{name} {_ms(p, 'stall')} ms" for name, p in workers.items())
    slowest = max(workers, key=lambda name: _seconds(workers[name], "stall"))
    parts = workers[slowest]
    if _seconds(parts, "roll_call") == 0.0:
        return told
    named = [f"{p.replace('_', '-')} {_ms(parts, p)}" for p in RECOVERY if _seconds(parts, p)]
    return f"{told}; {slowest}: {', '.join(named)} ms"


def _workers(event: Event) -> dict[str, Mapping[str, Any]]:
    """Worker -> what it tells of a switch, in the order of the workers."""
    told = event.details.get("workers")
    if not isinstance(told, Mapping):
        return {}
    named = sorted(told.items(), key=lambda item: (len(item[0]), item[0]))
    return {name: p for name, p in named if isinstance(p, Mapping) and "stall_s" in p}


def _seconds(parts: Mapping[str, Any], name: str) -> float:
    value = parts.get(f"{name}_s", 0.0)
    return float(value) if isinstance(value, int | float) else 0.0


def _ms(parts: Mapping[str, Any], name: str) -> str:
    return f"{1000.0 * _seconds(parts, name):.0f}"
