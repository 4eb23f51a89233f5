"""Replay the event log of a cluster: which job had which slots when, how it ended, who asked what.

The event log keeps the newest events only. What follows from them is the history of the cluster;
it is kept outside ZooKeeper, and may be made again from the events that are still there.

:func:`replayed` is a pure function of one event and of the job that the event is about. So the
history does not depend on how many events are read at a time. The rules:

1. A job begins with the event of its submission, whose number tells it from other jobs of its name.
   If that event is not there any more, it begins with the first one that is, and its submitter and
   the time of its submission are not known.
2. An interval of slots on a host ends with the next event that says another number there, or with
   an event after which the job has no run.
3. The clocks of two leaders may differ. An event that is earlier than the one before it, about the
   same job, counts as if it were of the same time: no interval is negative, and none of a job on
   one host overlap.
4. A submission has the time of its submitter's clock. It neither delays what the leader writes
   afterwards nor ends an interval, and is shown as no later than the job's next state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, NamedTuple

from edl.cluster.lifecycle import ClusterEvent, ClusterEventKind, LifeResult, LifeState
from edl.record import Record

BY_USERS = frozenset(
    {
        ClusterEventKind.SUBMITTED,
        ClusterEventKind.WANTED,
        ClusterEventKind.DRAIN,
        ClusterEventKind.POLICY,
        ClusterEventKind.SECRET,
        ClusterEventKind.QUEUE,
        ClusterEventKind.TENANT,
    }
)
"""The kinds of events that say what users asked for, which an audit is about."""

MISSED = "events about it were removed from the log before they were read"
REPLACED = "a job of its name was submitted, and no event says how this one ended"


@dataclass(frozen=True)
class JobHistory(Record):
    """The summary of a job from its events: its times, its state and its slot-seconds."""

    submission: Annotated[int, "number of the first event about it; no other job has it"]
    job: Annotated[str, "its name"]
    by: Annotated[str, "who has submitted it; empty: not known"] = ""
    submitted_s: Annotated[float, "when it was submitted, in seconds since 1970; 0: not known"] = (
        0.0
    )
    started_s: Annotated[float, "when it first got slots; 0: never, or not known"] = 0.0
    ended_s: Annotated[float, "when it ended; 0: it has not"] = 0.0
    state: Annotated[LifeState, "its last state"] = LifeState.QUEUED
    result: Annotated[LifeResult | None, "how it ended; null: it has not, or it is not known"] = (
        None
    )
    reason: Annotated[str, "the reason of its last state"] = ""
    runs: Annotated[int, "number of its runs"] = 0
    slot_s: Annotated[float, "for how many seconds it has had slots, times their number"] = 0.0


@dataclass(frozen=True)
class SlotInterval(Record):
    """A time during which a job had the same number of slots on a host."""

    submission: Annotated[int, "the number that tells the job from others of its name"]
    job: Annotated[str, "its name"]
    host: Annotated[str, "the host"]
    slots: Annotated[int, "how many slots it had there"]
    begin_s: Annotated[float, "from when, in seconds since 1970"]
    end_s: Annotated[float | None, "until when; null: it has them still"]


@dataclass(frozen=True)
class AuditEntry(Record):
    """A request of a user: who asked for what, when, about which job or host."""

    number: Annotated[int, "number of the event"]
    time_s: Annotated[
        float,
        "when, in seconds since 1970, by the clock of the user's machine; if a tenant has asked, "
        "by ZooKeeper's",
    ]
    by: Annotated[str, "who"]
    kind: Annotated[ClusterEventKind, "the kind of the event"]
    job: Annotated[str, "the job that it is about; empty: none"]
    host: Annotated[str, "the host that it is about; empty: none"]
    reason: Annotated[str, "what was asked for, in a sentence"]


@dataclass(frozen=True)
class HostSlots(Record):
    """The slots that a job has on a host since a time, in seconds since 1970."""

    slots: int
    since_s: float


@dataclass(frozen=True)
class JobHistoryState(Record):
    """A job as far as its events were replayed."""

    history: JobHistory  # its slot-seconds are those of intervals that have ended
    hosts: Mapping[str, HostSlots] = field(default_factory=dict)
    last_s: float = 0.0  # the time of a leader's last event about it; 0: there is none

    @property
    def is_over(self) -> bool:
        return self.history.ended_s > 0.0

    def until(self, now_s: float) -> JobHistory:
        running = sum(one.slots * max(0.0, now_s - one.since_s) for one in self.hosts.values())
        return replace(self.history, slot_s=self.history.slot_s + running)

    def open_intervals(self) -> tuple[SlotInterval, ...]:
        return tuple(
            SlotInterval(
                self.history.submission, self.history.job, host, one.slots, one.since_s, None
            )
            for host, one in sorted(self.hosts.items())
        )


class EventOutcome(NamedTuple):
    """The changes of the history that follow from one event."""

    jobs: tuple[JobHistoryState, ...] = ()  # as they are now; the last has the event's name
    intervals: tuple[SlotInterval, ...] = ()  # the intervals that end with it
    audit: AuditEntry | None = None  # the entry in the audit; None: no user has asked for it


def replayed(before: JobHistoryState | None, number: int, event: ClusterEvent) -> EventOutcome:
    # `before`: the job of the event's name that has not ended
    audit = None
    if event.kind in BY_USERS:
        audit = AuditEntry(
            number, event.time_s, event.by, event.kind, event.job, event.host, event.reason
        )
    if event.kind is ClusterEventKind.SUBMITTED:
        new = JobHistory(number, event.job, event.by, event.time_s, reason=event.reason)
        jobs = (JobHistoryState(new),)
        if before is None:
            return EventOutcome(jobs, (), audit)
        lost = missed(before, REPLACED)
        return EventOutcome((*lost.jobs, *jobs), lost.intervals, audit)
    if event.state is not None:
        return _with_state(_known(before, number, event), event, event.state)
    # The event that a job has no slots any more comes after that of its end.
    if event.slots is not None and (before is not None or any(event.slots.values())):
        now, intervals = _with_slots(_known(before, number, event), event.slots, event.time_s)
        return EventOutcome((now,), intervals)
    if event.kind is ClusterEventKind.REMOVED and before is not None and event.job:
        return ended(before, event.time_s, event.reason)
    return EventOutcome((), (), audit)


def ended(job: JobHistoryState, now_s: float, reason: str) -> EventOutcome:
    """Return what is added when a job is over of which no event says how it ended."""
    now, intervals = _with_slots(job, {}, now_s)
    over = replace(now.history, ended_s=now.last_s or now_s, reason=reason)
    return EventOutcome((replace(now, history=over),), intervals)


def missed(job: JobHistoryState, reason: str = MISSED) -> EventOutcome:
    """Return what is added for a job of which events may be missing: it ends with its last one."""
    return ended(job, job.last_s or job.history.submitted_s, reason)


def _known(before: JobHistoryState | None, number: int, event: ClusterEvent) -> JobHistoryState:
    return before or JobHistoryState(JobHistory(number, event.job), last_s=event.time_s)


def _with_state(job: JobHistoryState, event: ClusterEvent, state: LifeState) -> EventOutcome:
    intervals: tuple[SlotInterval, ...] = ()
    now = replace(job, last_s=max(job.last_s, event.time_s))
    if not state.has_run:
        now, intervals = _with_slots(now, {}, event.time_s)
    starts, ends = state is LifeState.STARTING, state is LifeState.ENDED
    history = replace(
        now.history,
        state=state,
        reason=event.reason,
        result=event.result,
        runs=now.history.runs + starts,
        submitted_s=min(now.history.submitted_s, now.last_s),
        started_s=now.history.started_s or (now.last_s if starts else 0.0),
        ended_s=now.last_s if ends else 0.0,
    )
    return EventOutcome((replace(now, history=history),), intervals)


def _with_slots(
    job: JobHistoryState, slots: Mapping[str, int], now_s: float
) -> tuple[JobHistoryState, tuple[SlotInterval, ...]]:
    now_s = max(now_s, job.last_s)
    hosts = {host: HostSlots(count, now_s) for host, count in slots.items() if count > 0}
    closed = []
    for host, had in sorted(job.hosts.items()):
        if host in hosts and hosts[host].slots == had.slots:
            hosts[host] = had
        elif now_s > had.since_s:
            about = job.history
            closed.append(
                SlotInterval(about.submission, about.job, host, had.slots, had.since_s, now_s)
            )
    # A job has had as many slot-seconds as its intervals, which all are there.
    slot_s = sum(one.slots * (now_s - one.begin_s) for one in closed)
    history = replace(job.history, slot_s=job.history.slot_s + slot_s)
    return JobHistoryState(history, hosts, now_s), tuple(closed)
