"""Define the parts of a worker's switch to another ring (:class:`SwitchParts`)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated

from edl.core.record import Record


@dataclass(frozen=True)
class SwitchParts(Record):
    """The seconds that each part of a worker's switch to another ring took; 0: it did not occur."""

    role: Annotated[str, "`new` for a worker that received the state, else `old`"] = "old"
    detect_s: Annotated[
        float,
        "after a crash: how long it waited for the others before it knew that the ring is broken; "
        "at most that, since it would have waited some of it in a whole ring too",
    ] = 0.0
    election_s: Annotated[
        float, "after a crash: from then until it heard of a new leader; 0 when one leads already"
    ] = 0.0
    survivor_report_s: Annotated[
        float, "after a crash: from then until it heard of the generation of the survivors"
    ] = 0.0
    wait_s: Annotated[
        float,
        "old: until all had arrived; after a crash: election, report of the survivors, closing the "
        "old ring beside them, and rebuilds that failed. New: from ready until the switch began",
    ] = 0.0
    shutdown_s: Annotated[float, "closing the old ring; 0 after a crash"] = 0.0
    init_s: Annotated[float, "building the new ring"] = 0.0
    broadcast_s: Annotated[float, "sending step, ledger and state"] = 0.0
    stall_s: Annotated[
        float,
        "how long the switch held this worker up: `wait_s` (not of a new one), `shutdown_s`, "
        "`init_s` and `broadcast_s`",
    ] = 0.0
    first_step_s: Annotated[
        float, "from the end of the switch until the next step was complete"
    ] = 0.0
    median_step_s: Annotated[float, "of an old worker's last 50 steps before it"] = 0.0

    def seconds(self) -> dict[str, float]:
        """Return the duration of each part by name, without `role`."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name.endswith("_s")}
