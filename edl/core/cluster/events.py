"""Define the event log of a cluster: what users asked for, and what the leader did and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from edl.core.cluster.job_life import LifeResult, LifeState
from edl.core.excerpt import excerpts
from edl.core.record import Record


class ClusterEventKind(StrEnum):
    """The kind of an event in a cluster's event log."""

    SUBMITTED = "submitted"
    WANTED = "wanted"
    DRAIN = "drain"
    POLICY = "policy"
    SECRET = "secret"
    QUEUE = "queue"
    TENANT = "tenant"
    LEADER = "leader"
    STATE = "state"
    SLOTS = "slots"
    HOST = "host"
    REMOVED = "removed"
    LEASE = "lease"


@dataclass(frozen=True)
class ClusterEvent(Record):
    """One entry of a cluster's event log."""

    time_s: Annotated[
        float,
        "when it was written, in seconds since 1970; if a leader wrote it, by ZooKeeper's clock",
    ]
    kind: Annotated[ClusterEventKind, "the kind of the event"]
    reason: Annotated[str, "what has happened, and why, in a sentence"]
    job: Annotated[str, "the job that it is about; empty: none"] = ""
    host: Annotated[str, "the host that it is about; empty: none, or several"] = ""
    by: Annotated[str, "who has written it: a user and a machine, or the leader's term"] = ""
    state: Annotated[
        LifeState | None, "of a `state` event, the state that the job has entered; else null"
    ] = None
    result: Annotated[LifeResult | None, "of a job's end, how it has ended; else null"] = None
    slots: Annotated[
        Mapping[str, int] | None, "of a `slots` event, host -> slots that the job has; else null"
    ] = None

    def to_json(self) -> dict[str, Any]:
        """Return the event as JSON values; a long text is cut to its beginning and its end."""
        values: dict[str, Any] = excerpts(super().to_json())
        return {name: value for name, value in values.items() if value is not None}
