"""Convert an event of a job or cluster for other programs, as `edl events --json` prints it.

:func:`flat` takes an event of a job, :func:`flat_of_cluster` one of a cluster.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from edl.cluster.lifecycle import ClusterEvent
from edl.core.events import Event


def flat(event: Event) -> dict[str, Any]:
    """Return an event of a job as one flat dictionary that can be written as JSON."""
    return {
        "time": datetime.fromtimestamp(event.time, UTC).isoformat(),
        "kind": str(event.kind),
        "generation": event.generation,
        "step": event.step,
        "reason": event.reason,
        **event.details.to_json(),
    }


def flat_of_cluster(number: int, event: ClusterEvent) -> dict[str, Any]:
    """Return an event of a cluster as a dictionary that can be written as JSON."""
    values = event.to_json()
    return {
        "number": number,
        "time": datetime.fromtimestamp(values.pop("time_s"), UTC).isoformat(),
        **values,
    }
