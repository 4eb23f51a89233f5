"""Define what all events of a job's event log have in common.

A kind is a member of :class:`EventKind` and has one subclass of :class:`Details`, in
:mod:`edl.core.events`, from which all names here are imported: it is there that each kind is
registered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self

from edl.core.excerpt import excerpts
from edl.core.record import Record
from edl.errors import CoordinationError


class EventKind(StrEnum):
    """The kind of an event, named by its value; its `Details` say when it is logged."""

    LEADER = "leader"
    GENERATION = "generation"
    SWITCH = "switch"
    EVICTED = "evicted"
    STALLED = "stalled"
    PAUSED = "paused"
    DRAIN = "drain"
    DESIRED = "desired"
    RECLAIMED = "reclaimed"
    PROFILING = "profiling"
    PROFILE = "profile"
    POLICY = "policy"
    POLICY_SET = "policy_set"
    GLOBAL_BATCH = "global_batch"
    WORKER_FAILED = "worker_failed"
    WORKER_EXITED = "worker_exited"
    WORKER_FROZEN = "worker_frozen"
    LOG_FAILED = "log_failed"
    LOG_RESUMED = "log_resumed"
    SLOW_WORKER = "slow_worker"
    STRAGGLER = "straggler"
    LOSS_SPIKE = "loss_spike"
    ZOOKEEPER_BACK = "zookeeper_back"
    JOB_RESTORED = "job_restored"
    SLOT_DISABLED = "slot_disabled"
    NO_TEMPLATE = "no_template"
    CHECKPOINT = "checkpoint"
    CHECKPOINT_FAILED = "checkpoint_failed"
    CHECKPOINT_REFUSED = "checkpoint_refused"
    RESUMED = "resumed"
    STATE_DIFFERS = "state_differs"
    EXACT_AUDIT = "exact_audit"
    DATA_SKIPPED = "data_skipped"
    TRAINING_STOPPED = "training_stopped"
    EPOCH_LEFT = "epoch_left"
    FINISHED = "finished"
    JOB_FINISHED = "job_finished"
    JOB_FAILED = "job_failed"
    JOB_STOPPED = "job_stopped"

    @classmethod
    def _missing_(cls, value: object) -> EventKind | None:
        return cls.SLOT_DISABLED if value == "slot_given_up" else None


@dataclass(frozen=True)
class Details(Record):
    """The fields of an event of one kind besides its time, generation, step and reason."""

    kind: ClassVar[EventKind]
    writer: ClassVar[str]  # who writes it, for the docs

    def __init_subclass__(cls, kind: EventKind | None = None, writer: str = "") -> None:
        if kind is not None:  # None: a class that several kinds share
            cls.kind, cls.writer = kind, writer
            DETAILS[kind] = cls


DETAILS: dict[EventKind, type[Details]] = {}


@dataclass(frozen=True)
class Event(Record):
    """One entry of a job's event log; the kind of the event is that of its `details`."""

    time: Annotated[float, "when it was written, by the writer's clock"]  # seconds since 1970
    generation: Annotated[int, "of the ring that it is about; 0: before the first"]
    step: Annotated[int, "the newest complete step that its writer knew"]
    reason: Annotated[str, "what has happened, and why, in a sentence"]
    details: Details

    @property
    def kind(self) -> EventKind:
        """The kind of this event, which is the kind of its details."""
        return self.details.kind

    def to_json(self) -> dict[str, Any]:
        """Return the event as JSON values, with its kind; of a long text the middle is left out."""
        values: dict[str, Any] = excerpts({"kind": str(self.kind), **super().to_json()})
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        try:
            details = DETAILS[EventKind(values["kind"])].from_json(values["details"])
        except (TypeError, ValueError, KeyError) as error:
            raise CoordinationError(f"this is not a {cls.__name__}: {error}") from error
        return replace(super().from_json({**values, "details": {}}), details=details)
