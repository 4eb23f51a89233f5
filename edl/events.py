"""Define the event log of a job: every kind of event, its meaning, and the details it carries.

A kind is a member of :class:`EventKind` and has one subclass of :class:`Details`, whose docstring
says when the event is logged and whose fields say what they hold. So a writer cannot forget or
invent a detail, a reader gets typed values, and `make docs` generates the tables of docs/reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self

from edl.errors import CoordinationError
from edl.learning import LossSpike
from edl.record import Record
from edl.records import SwitchParts
from edl.text import excerpts


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
        return self.details.kind

    def to_json(self) -> dict[str, Any]:
        values: dict[str, Any] = excerpts({"kind": str(self.kind), **super().to_json()})
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        try:
            details = DETAILS[EventKind(values["kind"])].from_json(values["details"])
        except (TypeError, ValueError, KeyError) as error:
            raise CoordinationError(f"this is not a {cls.__name__}: {error}") from error
        return replace(super().from_json({**values, "details": {}}), details=details)


@dataclass(frozen=True)
class LeaderDetails(Details, kind=EventKind.LEADER, writer="the leader"):
    """An event logged when `worker` begins to lead, or is connected to ZooKeeper again."""

    worker: Annotated[str, "the leader"]


@dataclass(frozen=True)
class GenerationDetails(Details, kind=EventKind.GENERATION, writer="the leader"):
    """An event logged when the leader has written a generation (the members of a new ring)."""

    term: Annotated[int, "the term of the leader"]
    members: Annotated[tuple[str, ...], "workers in rank order"]
    joined: Annotated[tuple[str, ...], "workers that receive the state"]
    left: Annotated[tuple[str, ...], "workers that are in it no more"]
    repair: Annotated[bool, "no ring trains until this one is built: one broke, or the job starts"]
    failures: Annotated[
        Mapping[str, str],
        "of a repair: survivor -> what Horovod told it, and the rank that it blames if the error "
        "names a host with one worker",
    ] = field(default_factory=dict)
    samples_per_s: Annotated[float, "of the ring before it, at last; 0: nobody knows"] = 0.0
    hosts: Annotated[Mapping[str, tuple[str, ...]], "host -> workers there that joined"] = field(
        default_factory=dict
    )


@dataclass(frozen=True)
class SwitchDetails(Details, kind=EventKind.SWITCH, writer="rank 0"):
    """An event logged two steps after a switch, or earlier if the next switch or the end comes.

    If the next switch follows before a step is complete, the earlier one is not logged.
    """

    RENAMED: ClassVar[Mapping[str, str]] = {"roll_call_s": "survivor_report_s"}

    world_size: Annotated[int, "workers in the new ring"]
    workers: Annotated[Mapping[str, SwitchParts], "worker -> the parts of its switch, see below"]


@dataclass(frozen=True)
class EvictedDetails(Details, kind=EventKind.EVICTED, writer="the leader"):
    """An event logged when the leader has evicted `worker`; the reason says why."""

    worker: Annotated[str, "the evicted one"]


@dataclass(frozen=True)
class StalledDetails(Details, kind=EventKind.STALLED, writer="the leader"):
    """An event logged when no step completes for `stall_s` and for the time of 20 usual steps.

    The reason says since when, and in which line of code `workers` are.
    """

    workers: Annotated[tuple[str, ...], "those that hold the job up"]


@dataclass(frozen=True)
class PausedDetails(Details, kind=EventKind.PAUSED, writer="the leader"):
    """An event logged when only `world_size` workers are left, below `min_np`; they wait."""

    world_size: Annotated[int, "how many are left"]
    min_np: Annotated[int, "how many it takes"]


@dataclass(frozen=True)
class DrainDetails(Details, kind=EventKind.DRAIN, writer="the leader"):
    """An event logged when a request to drain or replace `worker` is `accepted` or refused."""

    worker: Annotated[str, "that shall leave"]
    accepted: Annotated[bool, "it leaves"]


@dataclass(frozen=True)
class DesiredDetails(Details, kind=EventKind.DESIRED, writer="whoever asks for it"):
    """An event logged when the desired number of workers on a host changes.

    The reason names the cause: `edl scale`, `edl migrate`, `edl profile`, a policy, a host that
    joins or leaves, a slot that is disabled, a worker that leaves, or slots that the job borrows or
    has to give back.
    """

    by: Annotated[str, "`person`, `cluster`, `launcher`, `profile`, `policy` or `leader`"]
    before: Annotated[Mapping[str, int], "host -> workers wanted there before"]
    after: Annotated[Mapping[str, int], "host -> workers wanted there from now on"]


@dataclass(frozen=True)
class ReclaimedDetails(Details, kind=EventKind.RECLAIMED, writer="an agent, or the leader"):
    """An event logged when slots of `host` that the job had borrowed are free again."""

    host: Annotated[str, "theirs"]
    slots: Annotated[int, "how many"]
    after_s: Annotated[float, "since they were asked for"]
    within_s: Annotated[float, "in what time they were to be given back"]


@dataclass(frozen=True)
class PolicyDetails(Details, kind=EventKind.POLICY, writer="the leader"):
    """An event logged when the job's policy makes a new decision, or fails and is switched off."""

    RENAMED: ClassVar[Mapping[str, str]] = {"wished": "wanted_np"}

    np: Annotated[int, "workers that train"]
    wanted_np: Annotated[int, "workers that it wants"]
    samples_per_s: Annotated[float, "of all workers together, with as many as now"]
    failed: Annotated[bool, "it raised an error, and does not count any more"] = False


@dataclass(frozen=True)
class PolicySetDetails(Details, kind=EventKind.POLICY_SET, writer="who sets it"):
    """An event logged when a policy is set, or turned `on` or off."""

    on: Annotated[bool, "it counts"]
    source: Annotated[str, "the file that it is from, or the script"]
    text: Annotated[str, "the file"]


@dataclass(frozen=True)
class GlobalBatchDetails(Details, kind=EventKind.GLOBAL_BATCH, writer="the leader"):
    """An event logged when the job changes its global batch."""

    before: Annotated[int, "samples of all workers together until then"]
    batch: Annotated[int, "those from then on"]


@dataclass(frozen=True)
class ProfilingDetails(Details, kind=EventKind.PROFILING, writer="`edl profile`"):
    """An event logged when `edl profile` begins; afterwards the job has its size back."""

    np: Annotated[int, "workers wanted before"]
    desired: Annotated[Mapping[str, int], "host -> workers wanted there before"]


@dataclass(frozen=True)
class ProfileDetails(Details, kind=EventKind.PROFILE, writer="`edl profile`"):
    """An event logged when `edl profile` has measured the job's throughput with `np` workers."""

    np: Annotated[int, "workers that trained"]
    throughput: Annotated[float, "of all together, a second"]
    step_s: Annotated[float, "mean time of a step"]
    steps: Annotated[int, "that were measured"]
    seconds: Annotated[float, "that they took"]
    unit: Annotated[str, "what the throughput counts: `samples` or `commits`"]


@dataclass(frozen=True)
class EndedDetails(Details):
    """The common fields of events about a worker process that has ended."""

    RENAMED: ClassVar[Mapping[str, str]] = {"last_line": "termination_message"}

    worker: Annotated[str | None, "null: it never joined"]
    host: Annotated[str, "its host"]
    slot: Annotated[int, "its slot there"]
    exit_code: Annotated[int | None, "-9: signal 9; null: nobody knows it"]
    termination_message: Annotated[
        str,
        "the line of its output that says best why it ended: the end of a traceback, else the last "
        "line that is not noise; under horovodrun a line of its standard error",
    ]
    output_tail: Annotated[str, "last 2,000 bytes of its output; empty under horovodrun"] = ""


@dataclass(frozen=True)
class WorkerFailedDetails(
    EndedDetails, kind=EventKind.WORKER_FAILED, writer="an agent, or `edl-worker`"
):
    """An event logged when a worker process has failed: it ended by itself, and not in order.

    It ended with an error, or without joining the job, or with code 0 while the others train on.
    """


@dataclass(frozen=True)
class WorkerExitedDetails(
    EndedDetails, kind=EventKind.WORKER_EXITED, writer="an agent, or `edl-worker`"
):
    """An event logged when a worker process has ended without failing.

    The worker had finished or left, or its process was ended; the reason says by whom and why. `edl
    run` does not show this event.
    """


@dataclass(frozen=True)
class WorkerFrozenDetails(Details, kind=EventKind.WORKER_FROZEN, writer="an agent"):
    """An event logged when `worker` does not answer or is suspended, and its agent ends it."""

    worker: Annotated[str, "that does not answer"]
    host: Annotated[str, "its host"]
    slot: Annotated[int, "its slot there"]
    stacks: Annotated[
        str,
        "file with [where its threads are]"
        "(../guides/troubleshooting.md#a-worker-that-does-not-answer); empty: it is suspended",
    ]


@dataclass(frozen=True)
class LogFailedDetails(Details, kind=EventKind.LOG_FAILED, writer="a worker"):
    """An event logged when `worker` on `host` cannot write its log file, `path`.

    The worker trains on; its output is discarded until the file can be written again.
    """

    worker: Annotated[str, "whose log it is"]
    host: Annotated[str, "its host"]
    path: Annotated[str, "of its log"]
    disk: Annotated[str, "where the disk of its log is mounted; empty: not known"] = ""


@dataclass(frozen=True)
class LogResumedDetails(Details, kind=EventKind.LOG_RESUMED, writer="a worker"):
    """An event logged when `worker` on `host` can write its log file again."""

    worker: Annotated[str, "whose log it is"]
    host: Annotated[str, "its host"]
    lost_bytes: Annotated[int, "bytes that are left out"]


@dataclass(frozen=True)
class SlowWorkerDetails(Details, kind=EventKind.SLOW_WORKER, writer="rank 0"):
    """An event logged when `worker` computes much longer than the others, which wait for it.

    In the last 50 steps its median in a step was at least twice that of the others. The event is
    logged once for each ring and worker.
    """

    worker: Annotated[str, "the slow one"]
    compute_s: Annotated[float, "its median in a step"]
    others_s: Annotated[float, "that of the others"]
    host: Annotated[str, "where it runs; empty: an older edl has written it"] = ""


@dataclass(frozen=True)
class StragglerDetails(Details, kind=EventKind.STRAGGLER, writer="the leader"):
    """An event logged when the policy finds slow workers, changes their batches or replaces one.

    The event is also logged when such a worker is as fast as the others again; the event's reason
    says which of these it is. Only a job whose policy handles
    [stragglers](../guides/job-size.md#stragglers) has such events.
    """

    workers: Annotated[tuple[str, ...], "the slow ones; empty: all alike, by the network"]
    host: Annotated[str, "where all of them are, if they are all that are there; else empty"]
    at: Annotated[str, "what is slow: `computes`, `loads its data` or `reduces`"]
    speed: Annotated[float, "of the slowest, relative to the median"]


@dataclass(frozen=True)
class LossSpikeDetails(Details, kind=EventKind.LOSS_SPIKE, writer="the leader"):
    """An event logged when the loss is not finite, or far above its lowest value.

    The guide says [how far](../guides/dashboard.md#loss-and-learning-rate).
    """

    at_step: Annotated[int, "the step of the loss"]
    spike: Annotated[
        LossSpike,
        "`loss` (a mean of the last ones; null: not finite) and its `lowest` value before, at "
        "`lowest_step`; `learning_rate`, and `rate_before` its last rise, to `rate_after`, at "
        "`rate_step`",
    ]


@dataclass(frozen=True)
class ZookeeperBackDetails(Details, kind=EventKind.ZOOKEEPER_BACK, writer="rank 0"):
    """An event logged when ZooKeeper answers again after `away_s` seconds, a second or more."""

    away_s: Annotated[float, "how long"]
    from_step: Annotated[int, "the step when it began; -1: an older edl has written it"] = -1


@dataclass(frozen=True)
class JobRestoredDetails(Details, kind=EventKind.JOB_RESTORED, writer="a worker, or an agent"):
    """An event logged when `process` has written the job again, which ZooKeeper had lost."""

    process: Annotated[str, "that has written it"]


@dataclass(frozen=True)
class SlotDisabledDetails(
    Details, kind=EventKind.SLOT_DISABLED, writer="an agent, or `edl-worker`"
):
    """An event logged when no worker is started any more in a slot of `host`.

    The slot failed more than `max_restarts` times in a row, or its worker can never join the job.
    """

    host: Annotated[str, "of the slot"]
    slot: Annotated[int, "its number there"]


@dataclass(frozen=True)
class NoTemplateDetails(Details, kind=EventKind.NO_TEMPLATE, writer="an agent"):
    """An event logged when the workers of `host` are not forked from a template process.

    The reason says why; see [how a worker starts](../explanation/workers.md#how-a-worker-starts).
    """

    host: Annotated[str, "of the agent"]


@dataclass(frozen=True)
class CheckpointDetails(Details, kind=EventKind.CHECKPOINT, writer="rank 0"):
    """An event logged when rank 0 has written a checkpoint."""

    path: Annotated[str, "of its file"]
    bytes: Annotated[int, "its size"]
    capture_s: Annotated[float, "how long training paused"]
    write_s: Annotated[float, "how long it took to write, beside training"]


@dataclass(frozen=True)
class CheckpointFailedDetails(Details, kind=EventKind.CHECKPOINT_FAILED, writer="rank 0"):
    """An event logged when a checkpoint could not be written; training goes on."""

    path: Annotated[str, "of the directory of checkpoints; empty: not known"] = ""
    disk: Annotated[str, "where the disk of that is mounted; empty: not known, or no disk"] = ""
    superseded: Annotated[
        bool, "whether a newer ring of the job, or a newer start, writes them"
    ] = False


@dataclass(frozen=True)
class CheckpointRefusedDetails(
    Details, kind=EventKind.CHECKPOINT_REFUSED, writer="the state source"
):
    """An event logged when the checkpoint `path` cannot be loaded; an older one is tried."""

    path: Annotated[str, "of the file"]


@dataclass(frozen=True)
class ResumedDetails(Details, kind=EventKind.RESUMED, writer="the state source"):
    """An event logged when the state source has loaded a checkpoint, which it sends to others."""

    path: Annotated[str, "of the file"]
    lost_steps: Annotated[
        int | None, "after the death of all workers: at least so many; else null"
    ] = None


@dataclass(frozen=True)
class StateDiffersDetails(Details, kind=EventKind.STATE_DIFFERS, writer="rank 0"):
    """An event logged when the workers' [states](../explanation/guarantees.md#equal-states) differ.

    The reason says after which step, and what differs first.
    """

    RENAMED: ClassVar[Mapping[str, str]] = {"healed_from": "resynced_from"}

    workers: Annotated[
        tuple[str, ...], "those that differ from what most hold; none when no majority agrees"
    ]
    resynced_from: Annotated[
        str | None, "whose state they get; null: the job ends, or newcomers do"
    ] = None


@dataclass(frozen=True)
class ExactAuditDetails(Details, kind=EventKind.EXACT_AUDIT, writer="rank 0"):
    """An event logged when logical workers were [trained twice](../guides/exact.md#audit).

    Both times the bits were the same; a difference ends the job.
    """

    steps: Annotated[int, "audited"]
    compared: Annotated[int, "logical workers in them that were trained twice"]
    apart: Annotated[int, "of these, on two different workers"]


@dataclass(frozen=True)
class DataSkippedDetails(Details, kind=EventKind.DATA_SKIPPED, writer="rank 0"):
    """An event logged when the loader is created over damaged data.

    The reason says which parts `on_error="skip"` [leaves out](../guides/data.md#damage).
    """

    bytes: Annotated[int, "left out"]
    file: Annotated[str | None, "path; null when one event tells of several parts"] = None
    offset: Annotated[int | None, "where in the file; null likewise"] = None
    parts: Annotated[int, "left out"] = 1
    files: Annotated[int, "that they are in"] = 1


@dataclass(frozen=True)
class TrainingStoppedDetails(Details, kind=EventKind.TRAINING_STOPPED, writer="rank 0"):
    """An event logged when all workers leave Keras' `fit` before its last epoch.

    The reason says after which step, and who wanted to stop.
    """


@dataclass(frozen=True)
class EpochLeftDetails(Details, kind=EventKind.EPOCH_LEFT, writer="rank 0"):
    """An event logged when all workers leave an epoch early.

    A loop of the script was shorter than the epoch. The workers go on to the next epoch, or end.
    `edl run` does not show this event.
    """

    epoch: Annotated[int, "counted from 0"]
    trained: Annotated[int, "samples of it that are in the model"]
    untrained: Annotated[int | None, "the others; null: of a stream, nobody knows"]


@dataclass(frozen=True)
class FinishedDetails(Details, kind=EventKind.FINISHED, writer="rank 0"):
    """An event logged when the training is complete.

    All epochs are trained, as many steps as were wanted are trained, or all scripts have ended
    after the same step; the reason says which.
    """


@dataclass(frozen=True)
class JobFinishedDetails(Details, kind=EventKind.JOB_FINISHED, writer="an agent"):
    """An event logged when all workers have exited with code 0, and none has recorded the end."""


@dataclass(frozen=True)
class JobFailedDetails(
    Details,
    kind=EventKind.JOB_FAILED,
    writer="an agent, `edl-worker`, or a worker whose job cannot go on",
):
    """An event logged when the job has ended as failed; the reason says why."""


@dataclass(frozen=True)
class JobStoppedDetails(
    Details, kind=EventKind.JOB_STOPPED, writer="an agent, `edl-worker`, or `edl stop`"
):
    """An event logged when the job has ended because it was asked to stop."""
