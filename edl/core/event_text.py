"""Describe in words what led to a new ring, and what the switch to it has cost the workers.

`edl events`, the metrics and the dashboard use these words.
"""

from __future__ import annotations

from edl.core.events import Event, GenerationDetails, SwitchDetails
from edl.core.switch_parts import SwitchParts

LAST_WORDS = "; the last line of "  # in the sentence that says how a job has failed
CHANGE_KINDS = ("start", "join", "leave", "migrate", "crash", "rebuild")


def kind_of_change(generation: int, new: GenerationDetails) -> str:
    """Return what led to a new ring, as one of `CHANGE_KINDS`."""
    if generation <= 1:
        return "start"
    if new.repair:
        return "crash"
    if new.joined and new.left:
        return "migrate"
    return "join" if new.joined else "leave" if new.left else "rebuild"


def cost(event: Event) -> str:
    """Return the time that a switch has cost, in words; empty if `event` is of another kind."""
    if not isinstance(event.details, SwitchDetails) or not event.details.workers:
        return ""
    by_number = sorted(event.details.workers.items(), key=lambda item: (len(item[0]), item[0]))
    stalls = "stall " + ", ".join(f"{name} {_ms(parts.stall_s)} ms" for name, parts in by_number)
    if all(parts.survivor_report_s == 0.0 for _, parts in by_number):
        return stalls
    name, parts = max(by_number, key=lambda item: without_step_s(item[1]))
    recovery = {
        "detect": parts.detect_s,
        "election": parts.election_s,
        "survivor report": parts.survivor_report_s,
        "init": parts.init_s,
        "broadcast": parts.broadcast_s,
        "first step": parts.first_step_s,
    }
    each = ", ".join(f"{part} {_ms(seconds)}" for part, seconds in recovery.items() if seconds)
    return f"no step for {_ms(without_step_s(parts))} ms: {name} {each}; {stalls}"


def without_step_s(parts: SwitchParts) -> float:
    """Return how long a worker completed no step around a switch, from its wait in a failed one."""
    return parts.detect_s + parts.stall_s + parts.first_step_s


def _ms(seconds: float) -> str:
    return f"{1000.0 * seconds:.0f}"


def longest_stall(switch: SwitchDetails) -> SwitchParts | None:
    """Return the parts of the old worker that `switch` held up longest, if it had any."""
    old = [parts for parts in switch.workers.values() if parts.role == "old"]
    return max(old, key=lambda parts: parts.stall_s, default=None)
