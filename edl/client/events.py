"""An event for other programs: what `edl events --json` prints."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from edl.core.events import Event


def flat(event: Event) -> dict[str, Any]:
    """The event as one flat object."""
    return {
        "time": datetime.fromtimestamp(event.time, UTC).isoformat(),
        "kind": str(event.kind),
        "generation": event.generation,
        "step": event.step,
        "reason": event.reason,
        **event.details.to_json(),
    }
