"""Convert an event of a job for other programs, as `edl events --json` prints it (:func:`flat`)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from edl.core.events import Event


def flat(event: Event) -> dict[str, Any]:
    """Return an event of a job as one flat dictionary that can be written as JSON.

    It has ``time`` (ISO 8601, UTC), ``kind``, ``generation``, ``step``, ``reason``, and the details
    of that kind of event as further keys (docs/reference/status-and-events.md).
    """
    return {
        "time": datetime.fromtimestamp(event.time, UTC).isoformat(),
        "kind": str(event.kind),
        "generation": event.generation,
        "step": event.step,
        "reason": event.reason,
        **event.details.to_json(),
    }
