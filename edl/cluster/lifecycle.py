"""Define the states of a job of a cluster, and the events that lead from one to another.

A job of a cluster is a sequence of *runs*. A run is one start of an ordinary edl job; its *token*
tells it from all other runs. :data:`TRANSITIONS` is complete, and docs/adr/0025 shows it as a
table. The rules:

1. **A run is written before it is created.** The token of a run is in the job's record when the
   job enters ``STARTING``. Whoever leads next creates the same run.
2. **One run at a time.** A job starts a run only from ``QUEUED``, and enters ``QUEUED`` only when
   its last run is over or can never form a ring.
3. **The end is the end.** Nothing leads out of ``ENDED``.

The table does not say when an event happens: that is :mod:`edl.cluster.reconcile`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

from edl.cluster.records import Goal, Wanted
from edl.errors import IllegalTransition, UsageError
from edl.record import Record
from edl.text import excerpts

MAX_BACK_OFF_S = 300.0  # the longest wait before a job is tried again
_TOKEN_LENGTH = 24  # hexadecimal digits of a run's token
STABLE_S = MAX_BACK_OFF_S  # after so long in training a failure counts as the first one again


class LifeState(StrEnum):
    """The state of a job of a cluster."""

    QUEUED = "queued"  # it waits for slots
    STARTING = "starting"  # it has slots and a run, whose first ring does not train yet
    RUNNING = "running"  # it trains
    HALTING = "halting"  # its run was told to stop
    HALTED = "halted"  # it has no run until a user resumes it
    ENDED = "ended"  # it has finished, failed, or was deleted

    @property
    def has_run(self) -> bool:
        return self in (LifeState.STARTING, LifeState.RUNNING, LifeState.HALTING)


class LifeEvent(StrEnum):
    """An event that takes a job from one `LifeState` to another, by `TRANSITIONS`."""

    START = "start"
    TRAIN = "train"
    TAKE_BACK = "take back"
    STOP = "stop"
    HALT = "halt"
    RESUME = "resume"
    DELETE = "delete"
    REQUEUE = "requeue"
    RETRY = "retry"
    GIVE_UP = "give up"
    FINISH = "finish"


class Transition(NamedTuple):
    to: LifeState  # the next state
    when: str  # what must be so, as a clause for the docs


_FINISH = Transition(LifeState.ENDED, "the run has trained to the end")
_GIVE_UP = Transition(LifeState.ENDED, "the run has failed, and no retries are left")

_CANNOT_START = Transition(
    LifeState.ENDED, "the run has failed, and no retries are left or its command cannot start"
)

_DELETE = Transition(LifeState.ENDED, "deletion is wanted")

TRANSITIONS: Mapping[LifeState, Mapping[LifeEvent, Transition]] = {
    LifeState.QUEUED: {
        LifeEvent.START: Transition(
            LifeState.STARTING,
            "the plan gives it slots that are free; the run's token, its devices and the hosts' "
            "assignments are one transaction",
        ),
        LifeEvent.HALT: Transition(LifeState.HALTED, "halt is wanted"),
        LifeEvent.DELETE: _DELETE,
        LifeEvent.GIVE_UP: Transition(
            LifeState.ENDED, "a job of its `after` has failed or was deleted"
        ),
    },
    LifeState.STARTING: {
        LifeEvent.TRAIN: Transition(LifeState.RUNNING, "its first ring trains"),
        LifeEvent.TAKE_BACK: Transition(
            LifeState.QUEUED,
            "no ring trains after `start_timeout_s`, or hosts were lost and fewer than `min` slots "
            "are left, or it cannot start on its hosts and others have room: all is taken back",
        ),
        LifeEvent.RETRY: Transition(
            LifeState.QUEUED, "the run has failed before its first step, and retries are left"
        ),
        LifeEvent.GIVE_UP: _CANNOT_START,
        LifeEvent.FINISH: _FINISH,
        LifeEvent.STOP: Transition(LifeState.HALTING, "halt or deletion is wanted"),
    },
    LifeState.RUNNING: {
        LifeEvent.STOP: Transition(
            LifeState.HALTING,
            "halt or deletion is wanted; or the plan gives it no slots (preempted); or fewer than "
            "`min` are left and not enough are free",
        ),
        LifeEvent.RETRY: Transition(
            LifeState.QUEUED, "the run has failed, and retries are left; or `edl stop` stopped it"
        ),
        LifeEvent.GIVE_UP: _GIVE_UP,
        LifeEvent.FINISH: _FINISH,
    },
    LifeState.HALTING: {
        LifeEvent.HALT: Transition(
            LifeState.HALTED, "halt is wanted, the run is over and no process of it is left"
        ),
        LifeEvent.REQUEUE: Transition(
            LifeState.QUEUED, "run is wanted, the run is over and no process of it is left"
        ),
        LifeEvent.RETRY: Transition(
            LifeState.QUEUED, "the run has failed while it stopped, and retries are left"
        ),
        LifeEvent.GIVE_UP: _GIVE_UP,
        LifeEvent.FINISH: _FINISH,
        LifeEvent.DELETE: Transition(
            LifeState.ENDED, "deletion is wanted, the run is over and no process of it is left"
        ),
    },
    LifeState.HALTED: {
        LifeEvent.RESUME: Transition(LifeState.QUEUED, "run is wanted"),
        LifeEvent.DELETE: _DELETE,
    },
    LifeState.ENDED: {},
}


class LifeResult(StrEnum):
    """How a job of a cluster has ended: it trained to the end, failed, or was deleted by a user."""

    FINISHED = "finished"  # it has trained to the end
    FAILED = "failed"  # its runs have failed more often than its manifest allows
    DELETED = "deleted"  # a user has deleted it

    @property
    def phrase(self) -> str:
        """What has become of the job, after its name: "has failed", "was deleted"."""
        return f"{'was' if self is LifeResult.DELETED else 'has'} {self.value}"


_RESULTS = {
    LifeEvent.FINISH: LifeResult.FINISHED,
    LifeEvent.GIVE_UP: LifeResult.FAILED,
    LifeEvent.DELETE: LifeResult.DELETED,
}


@dataclass(frozen=True)
class HostLimit(Record):
    most: int  # the most slots that the job gets on the host
    until_s: float  # until when, in seconds since 1970


@dataclass(frozen=True)
class JobLifecycle(Record):
    """The record of what a cluster's leader has made of a job, at the node `life` of the job."""

    # Times are in seconds since 1970.

    state: LifeState = LifeState.QUEUED
    reason: str = ""  # why the job is in this state, in a sentence
    since_s: float = 0.0  # when the job entered the state
    run: str = ""  # the token of the present run, or the last one; empty: never started
    runs: int = 0  # the number of runs so far, the present one included
    result: LifeResult | None = None  # how the job has ended; None: it has not
    exit_code: int = 0  # the exit code of its last run; 0 if there is none
    failures: int = 0  # how many of its runs have failed since it was submitted or resumed
    tries: int = 0  # how many starts or runs in a row came to nothing; they make the waits longer
    not_before_s: float = 0.0  # the time before which the job is not started again; 0: at any time
    submitted_s: float = 0.0
    started_s: float = 0.0  # when the job got its first slots; 0: never
    ended_s: float = 0.0
    slots: int = 0  # the number of slots that the job has had since `counted_s`
    counted_s: float = 0.0  # the time up to which `attained_slot_s` is counted
    attained_slot_s: float = 0.0  # seconds with slots, times their number, up to `counted_s`
    limits: Mapping[str, HostLimit] = field(default_factory=dict)  # by host
    # until when the job may be profiled, which is decided when it trains for the first time; 0:
    # that is not so yet, or its manifest does not ask for it
    profile_until_s: float = 0.0
    start_s: float = 0.0  # how long its last start took until its first step; 0: not known

    def after(self, event: LifeEvent, reason: str, now_s: float, **changes: Any) -> JobLifecycle:
        transition = TRANSITIONS[self.state].get(event)
        if transition is None:
            allowed = ", ".join(TRANSITIONS[self.state]) or "nothing"
            raise IllegalTransition(
                f"a job that is {self.state} ({self.reason or 'no reason is known'}) allows no "
                f"event {event.value!r}, only {allowed}; its record is unchanged. Please report "
                "this line as a defect of edl"
            )
        ends = transition.to is LifeState.ENDED
        return replace(
            self,
            state=transition.to,
            reason=reason,
            since_s=now_s,
            result=_RESULTS[event] if ends else None,
            ended_s=now_s if ends else 0.0,
            **changes,
        )

    def failed(self, now_s: float, counts: bool) -> dict[str, Any]:
        trained_s = now_s - self.since_s if self.state is LifeState.RUNNING else 0.0
        tries = 1 if trained_s >= STABLE_S else self.tries + 1
        return {
            "tries": tries,
            "failures": self.failures + counts,
            "not_before_s": now_s + back_off_s(tries),
        }

    def counted(self, slots: int, now_s: float) -> JobLifecycle:
        if slots == self.slots:
            return self
        attained = self.attained_s(now_s)
        return replace(self, slots=slots, counted_s=now_s, attained_slot_s=attained)

    def attained_s(self, now_s: float) -> float:
        return self.attained_slot_s + self.slots * max(0.0, now_s - self.counted_s)


def back_off_s(tries: int) -> float:
    return float(min(MAX_BACK_OFF_S, 2.0 ** min(tries - 1, 20)))


def run_token(order: int, number: int) -> str:
    # The same from two leaders that start the same run, another after a new submission.
    return f"{order:016x}{number:08x}"


def run_order(token: str) -> int:
    """Return the place of a run's job in the order of submission; -1 if no cluster made the run."""
    return int(token[:16], 16) if len(token) == _TOKEN_LENGTH else -1


def is_token_of(token: str, order: int) -> bool:
    return run_order(token) == order


# ------------------------------------------------------------
# Define the event log of a cluster: what users asked for, and what the leader did and why.


class ClusterEventKind(StrEnum):
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


# ------------------------------------------------------------
# Decide which changes of a user's goal for a job of a cluster are allowed, and describe them.


def deleted(before: Wanted, life: JobLifecycle, once: bool = False) -> Wanted:
    """Return what is wanted of a job that a user deletes: that it is gone."""
    # a repeated request: the job may have ended because of the first
    if once and before.goal is Goal.GONE:
        return before
    removed = before.removed or life.state is LifeState.ENDED
    return replace(before, goal=Goal.GONE, removed=removed)


def check_change(job: str, life: JobLifecycle, before: Wanted, after: Wanted) -> None:
    if life.state is LifeState.ENDED and after.goal is not Goal.GONE:
        how = life.result or "ended"
        raise UsageError(f"job {job} has ended ({how}); submit it again to run it once more")
    if before.goal is Goal.GONE and after.goal is not Goal.GONE:
        raise UsageError(f"job {job} is being deleted; submit it again when it is gone")


def describe_change(before: Wanted, after: Wanted) -> str:
    """Return a text for the event log that says in what `after` differs from `before`."""
    changes = []
    if before.goal is not after.goal:
        changes.append(f"{after.goal} is wanted, no longer {before.goal}")
    if before.priority != after.priority:
        changes.append(f"the priority is {after.priority}, no longer {before.priority}")
    if after.removed and not before.removed:
        changes.append("its records are to be removed")
    return ", and ".join(changes)
