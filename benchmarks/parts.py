"""The parts of a switch, as edl reports them in its event log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

PLANNED = ("wait", "shutdown", "init", "broadcast", "first_step")
REPAIR = ("detect", "election", "survivor_report", "close", "init", "broadcast", "first_step")


def slowest(
    events: Iterable[Mapping[str, Any]],
    which: Callable[[Mapping[str, Any]], bool],
    names: Iterable[str],
) -> dict[str, float]:
    """Return the parts ``names`` of the first switch that fits ``which``, in seconds.

    They are those of the old worker that stalled longest. ``close`` is what election and survivor
    report leave of ``wait``. Empty when there was no such switch.
    """
    switches = [event for event in events if event["kind"] == "switch" and which(event)]
    if not switches:
        return {}
    first = min(switches, key=lambda event: int(event["generation"]))
    old = [parts for parts in first["workers"].values() if parts["role"] == "old"]
    parts = dict(max(old, key=lambda parts: float(parts["stall_s"])))
    parts["close_s"] = parts["wait_s"] - parts["election_s"] - parts["survivor_report_s"]
    return {name: float(parts[f"{name}_s"]) for name in names}
