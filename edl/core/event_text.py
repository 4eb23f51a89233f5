"""An event of the job's log as one line for people."""

from __future__ import annotations

from edl.core.events import Event, EventKind, SwitchDetails


def describe(event: Event) -> str:
    """Generation, step, kind and reason; for a switch also what it cost.

    A new generation is no kind that need be named beside its number.
    """
    kind = "" if event.kind is EventKind.GENERATION else f"{event.kind}: "
    line = f"generation {event.generation} step {event.step}: {kind}{event.reason}"
    text = cost(event)
    return f"{line} ({text})" if text else line


def cost(event: Event) -> str:
    """How long a switch held each worker up; of a repair, also the parts of the longest stall.

    Empty for other events.
    """
    if not isinstance(event.details, SwitchDetails) or not event.details.workers:
        return ""
    by_number = sorted(event.details.workers.items(), key=lambda item: (len(item[0]), item[0]))
    text = "stall " + ", ".join(f"{name} {_ms(parts.stall_s)} ms" for name, parts in by_number)
    slowest, parts = max(by_number, key=lambda item: item[1].stall_s)
    if parts.roll_call_s == 0.0:
        return text
    recovery = {
        "detect": parts.detect_s,
        "election": parts.election_s,
        "roll-call": parts.roll_call_s,
        "init": parts.init_s,
        "broadcast": parts.broadcast_s,
    }
    return f"{text}; {slowest}: {', '.join(f'{n} {_ms(s)}' for n, s in recovery.items() if s)} ms"


def _ms(seconds: float) -> str:
    return f"{1000.0 * seconds:.0f}"
