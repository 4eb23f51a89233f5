"""What a switch has cost, for people. Agents show less: :mod:`edl.core.host.headlines`."""

from __future__ import annotations

from edl.core.events import Event, SwitchDetails, SwitchParts


def cost(event: Event) -> str:
    """How long a switch held each worker up; of a repair, how long no step was complete at most,
    and the parts of the longest of that.

    Empty for other events.
    """
    if not isinstance(event.details, SwitchDetails) or not event.details.workers:
        return ""
    by_number = sorted(event.details.workers.items(), key=lambda item: (len(item[0]), item[0]))
    stalls = "stall " + ", ".join(f"{name} {_ms(parts.stall_s)} ms" for name, parts in by_number)
    if all(parts.roll_call_s == 0.0 for _, parts in by_number):
        return stalls
    name, parts = max(by_number, key=lambda item: without_step_s(item[1]))
    recovery = {
        "detect": parts.detect_s,
        "election": parts.election_s,
        "roll-call": parts.roll_call_s,
        "init": parts.init_s,
        "broadcast": parts.broadcast_s,
        "first step": parts.first_step_s,
    }
    each = ", ".join(f"{part} {_ms(seconds)}" for part, seconds in recovery.items() if seconds)
    return f"no step for {_ms(without_step_s(parts))} ms: {name} {each}; {stalls}"


def without_step_s(parts: SwitchParts) -> float:
    """Return how long a worker completed no step: from its wait in the one that failed, in s."""
    return parts.detect_s + parts.stall_s + parts.first_step_s


def _ms(seconds: float) -> str:
    return f"{1000.0 * seconds:.0f}"
