"""Define what the routes of the API answer and take, where that is no record of the cluster's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from edl.cluster.client.logs import LogEnd
from edl.cluster.history import AuditEntry, JobHistory, SlotInterval
from edl.cluster.lifecycle import LifeResult, LifeState
from edl.cluster.status import ClusterJobStatus, JobPlan
from edl.core.record import Record


@dataclass(frozen=True)
class ApiHealth(Record):
    """The answer of an API that serves requests; it says nothing of the cluster."""

    serves: Annotated[bool, "true"] = True


@dataclass(frozen=True)
class Submitted(Record):
    """The acknowledgement of a submission: the job is in ZooKeeper."""

    job: Annotated[str, "name of the job"]


@dataclass(frozen=True)
class JobList(Record):
    """The jobs of a cluster, in the order of submission."""

    jobs: Annotated[tuple[ClusterJobStatus, ...], "their states"]


@dataclass(frozen=True)
class WaitResult(Record):
    """The state of a job after a wait."""

    over: Annotated[bool, "whether it has ended, or a user has halted it; false: wait again"]
    job: Annotated[ClusterJobStatus, "its state"]


@dataclass(frozen=True)
class EventEntry(Record):
    """An event of a cluster, as `edl events --json` prints it."""

    number: Annotated[int, "its number; later events have greater ones"]
    time: Annotated[str, "when it was written, by the writer's clock (ISO 8601, UTC)"]
    kind: Annotated[str, "the kind of the event"]
    job: Annotated[str, "the job that it is about; empty: none"]
    host: Annotated[str, "the host that it is about; empty: none, or several"]
    reason: Annotated[str, "what has happened, and why, in a sentence"]
    by: Annotated[str, "who has written it"]
    state: Annotated[LifeState | None, "of a `state` event, the state that the job entered"] = None
    result: Annotated[LifeResult | None, "of a job's last event, how it ended"] = None
    slots: Annotated[
        Mapping[str, int] | None, "of a `slots` event, host -> slots that the job then has"
    ] = None


@dataclass(frozen=True)
class EventList(Record):
    """Events of a cluster, the oldest first."""

    events: Annotated[tuple[EventEntry, ...], "the events"]


@dataclass(frozen=True)
class LogList(Record):
    """The ends of the logs of a job's workers."""

    logs: Annotated[tuple[LogEnd, ...], "the ends"]


@dataclass(frozen=True)
class PriorityUpdate(Record):
    """The body of `PUT .../priority`."""

    priority: Annotated[int, "the new priority, from -1,000,000 to 1,000,000"]


@dataclass(frozen=True)
class DrainStatus(Record):
    """The answer to a request to drain or undrain a host."""

    host: Annotated[str, "name of the host"]
    drained: Annotated[bool, "whether it gets no slots of jobs any more"]


@dataclass(frozen=True)
class PlanList(Record):
    """The slots that the leader would give now to each job that has not ended, oldest first."""

    jobs: Annotated[tuple[JobPlan, ...], "the jobs"]


@dataclass(frozen=True)
class PolicySetting(Record):
    """The policy of a cluster, as it is read and set."""

    policy: Annotated[str, "name of the policy"]
    parameters: Annotated[
        Mapping[str, Any], "its parameters, where they are not the usual ones"
    ] = field(default_factory=dict)


@dataclass(frozen=True)
class SecretEntry(Record):
    """A secret that a cluster keeps, without its content."""

    name: Annotated[str, "its name"]
    set_s: Annotated[float, "when it was set, in seconds since 1970"]
    by: Annotated[str, "the user and the machine that have set it"]


@dataclass(frozen=True)
class SecretList(Record):
    """The secrets of a cluster, sorted by name."""

    secrets: Annotated[tuple[SecretEntry, ...], "the secrets, without their contents"]


@dataclass(frozen=True)
class JobHistoryList(Record):
    """Jobs of the past and the present, those that were submitted last first."""

    jobs: Annotated[tuple[JobHistory, ...], "the jobs"]


@dataclass(frozen=True)
class SlotIntervalList(Record):
    """Times during which jobs had slots on a host, the earliest first."""

    slots: Annotated[tuple[SlotInterval, ...], "the intervals"]


@dataclass(frozen=True)
class AuditList(Record):
    """Requests of users to a cluster, the oldest first."""

    audit: Annotated[tuple[AuditEntry, ...], "the entries"]
