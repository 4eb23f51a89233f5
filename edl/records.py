"""Define the records of a job in ZooKeeper: plain values, which are written as JSON.

:mod:`edl.zookeeper.store` stores them, :mod:`edl.job.membership` makes the leader's decisions from
them, the workers and agents act on them, and the CLI shows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Annotated, Any, ClassVar

from edl.metric import Histogram
from edl.record import Record
from edl.spec import JobSpec, Sizes


class Stage(StrEnum):
    """The stage of a worker, in this order; only `READY` may go back, for a later fit."""

    PREPARING = "preparing"  # starting, warming up
    READY = "ready"  # may be taken into the next generation
    ACTIVE = "active"  # in the ring
    LEAVING = "leaving"  # was asked to leave (SIGTERM), still in the ring until a switch
    FINISHED = "finished"  # trained to the end


class JobState(StrEnum):
    """The state of a job; three of the states are an end (`over`)."""

    RUNNING = "running"
    PAUSED = "paused"  # in a status only: it runs, and too few workers are left to train
    STOPPING = "stopping"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def over(self) -> bool:
        """Whether a job in this state has ended: finished, stopped or failed."""
        return self in (JobState.FINISHED, JobState.STOPPED, JobState.FAILED)

    @property
    def phrase(self) -> str:
        """The state as a verb, for sentences: "is running", "is stopped", "has failed", ..."""
        ended_itself = self in (JobState.FINISHED, JobState.FAILED)
        return f"{'has' if ended_itself else 'is'} {self}"


@dataclass(frozen=True)
class Job(Record):
    """The record of a job at ZooKeeper's node `job`: the job's specification and its state."""

    name: str
    spec: JobSpec
    state: JobState = JobState.RUNNING
    reason: str = ""  # of the state
    created: float = 0.0  # wall clock, for people only
    ended: float = 0.0  # the same
    exit_code: int = 0  # of `edl run`
    checkpoint: str = ""  # the directory of the newest one
    saved_step: int = -1  # of that; -1: there is none, so the job cannot outlive all its workers
    finished_in: int = 0  # the generation whose ring has trained to the end; 0: none has
    driver: str = ""  # address:port of the driver of horovodrun
    # It keeps its name also while no process of it lives, for its creator has chosen its token.
    reserved: bool = False
    end_within_s: float = 0.0  # the bound of its preemption (`ending`); 0: it is not preempted

    @property
    def sizes(self) -> Sizes:
        return self.spec.sizes


class RequestedBy(StrEnum):
    """The party that set the desired number of workers last."""

    PERSON = "person"  # a person, or a program, chose a size or moves workers; a profile keeps it
    CLUSTER = "cluster"  # the cluster that the job belongs to gives it other slots
    LAUNCHER = "launcher"  # a host comes or leaves, or a slot of it is disabled
    PROFILE = "profile"  # measures other sizes for a while
    POLICY = "policy"  # the job's own rule finds another size better
    LEADER = "leader"  # a worker that a signal or a drain took out is not replaced


@dataclass(frozen=True)
class _Placed(Record):
    """The base of records that have a number of workers for each host."""

    hosts: Mapping[str, int] = field(default_factory=dict)

    @property
    def np(self) -> int:
        return sum(self.hosts.values())


@dataclass(frozen=True)
class Reclaim(Record):
    """A demand that a job give back slots of one host that it has borrowed."""

    # Times are since 1970, by the clock of the host that demands. As clocks differ, only `within_s`
    # decides, from when a process first saw the demand (`ReclaimTracker`).
    host: str
    slots: int
    asked_s: float
    by_s: float

    @property
    def within_s(self) -> float:
        return self.by_s - self.asked_s


@dataclass(frozen=True)
class Desired(_Placed):
    """The record of the desired number of workers on each host, at the node `desired`."""

    # Without hosts the number cannot be changed: horovodrun's discovery script is another one than
    # `edl-discover`.

    by: RequestedBy = RequestedBy.LAUNCHER  # who asked last
    reason: str = ""
    at_s: float = 0.0  # wall clock
    borrowed: Mapping[str, int] = field(default_factory=dict)  # slots of these, by host
    reclaims: tuple[Reclaim, ...] = ()  # that are not done yet
    batch: int = 0  # the global batch that the job's cluster has chosen; 0: the job chooses


@dataclass(frozen=True)
class Assigned(_Placed):
    """The record of the number of workers that each launcher keeps on its host, at `assigned`."""

    # Slots are assigned, as horovodrun does: the workers of a host are those in its first slots, a
    # slot whose worker has left is filled again, and a leader does not take a worker away.
    by_slot: bool = False
    # The numbers of the devices that the job may use, by host. Empty: it is limited on no host;
    # else it may use none on a host that is not in it.
    devices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def devices_on(self, host: str) -> tuple[int, ...] | None:
        """Return the devices of `host` that the job may use, if any; None: it is not limited."""
        return self.devices.get(host, ()) if self.devices else None

    def grants(self, host: str, device: int) -> bool:
        allowed = self.devices_on(host)
        return allowed is None or device in allowed

    def most_on(self, host: str, np: int) -> int:
        allowed = self.devices_on(host)
        return np if allowed is None else min(np, len(allowed))


@dataclass(frozen=True)
class Host(Record):
    """The record of an agent that can start workers on its host, at the node `hosts/<name>`."""

    name: str
    slots: int
    address: str
    pid: int = 0  # of the agent
    leaving: bool = False  # set by others: its agent is asked to leave the job
    requested_np: int = 0  # workers that it wants to have, as long as it asks for them
    disabled: Mapping[str, str] = field(default_factory=dict)  # slot -> why it is not used
    devices: tuple[int, ...] = ()  # on which it may start workers
    busy: tuple[int, ...] = ()  # that living processes use
    machine: str = ""  # the machine and the pid namespace of the agent; empty: not known
    metrics_port: int = 0  # 0: it serves none
    # Slot -> why its workers ended before they were ready, again and again. The first ring does not
    # wait for them.
    failing: Mapping[str, str] = field(default_factory=dict)

    def shares_machine(self, other: Host) -> bool:
        """Return whether two agents have one address and, if both say it, one pid namespace."""
        known = {self.machine, other.machine} - {""}
        return self.address == other.address and len(known) < 2

    def is_same_agent(self, other: Host) -> bool:
        return (self.name, self.pid) == (other.name, other.pid) and self.shares_machine(other)


@dataclass(frozen=True)
class SlotRecord(Record):
    """The record of an `edl-worker` that keeps one slot, at the node `slots/<host>.<slot>`."""

    host: str
    slot: int
    pid: int = 0  # of `edl-worker`
    disabled: str = ""  # why no worker is started in the slot any more
    ending: bool = False  # a signal asked `edl-worker` to end, other than to bar its host


@dataclass(frozen=True)
class RingFailure(Record):
    """A worker's report that its ring has failed, in the field `broken` of its `Member`."""

    generation: int
    step: int  # the last step that it completed; -1: it has no state yet
    exchanges: int = 0  # how many exchanges between steps it has completed
    error: str = ""  # what Horovod said, in short
    blamed_rank: int = -1  # the member that the error is about; -1: it does not say
    leaves: int = 0  # how often all have left an epoch with a batch in hand, as far as it knows
    at_epochs: bool = False  # a newcomer has stepped back: they join at the start of an epoch
    gone: tuple[int, ...] = ()  # newcomers that have left the ring with this worker's knowledge

    def __str__(self) -> str:
        return self.error + (f" (rank {self.blamed_rank})" if self.blamed_rank >= 0 else "")

    @property
    def progress(self) -> tuple[int, int, int]:
        """Who has the larger one is further: all workers make the same of these in one order."""
        return self.step, self.exchanges, self.leaves


@dataclass(frozen=True)
class Member(Record):
    """The record of a worker process, at the node `members/<id>`; only that worker writes it."""

    id: int
    host: str
    slot: int
    address: str
    port: int  # of its daemon's HTTP server
    pid: int
    attempt_id: str  # token of the start that its agent made
    stage: Stage = Stage.PREPARING
    generation: int = 0  # the ring it is in; 0: none yet
    broken: RingFailure | None = None
    newest_generation: int = 0  # a newcomer's: it has noted this one, and waits for a later one
    fits: int = 0  # a newcomer's: it is ready for the fit that follows so many
    device: int | None = None  # that the agent has given to it; None: none

    @property
    def name(self) -> str:
        return f"w{self.id}"

    @property
    def used_device(self) -> int:
        return self.slot if self.device is None else self.device

    def at(
        self,
        stage: Stage,
        generation: int | None = None,
        newest_generation: int | None = None,
        fits: int | None = None,
    ) -> Member:
        # A worker that was asked to leave stays `LEAVING` when it enters another ring.
        keeps = self.stage is Stage.LEAVING and stage is Stage.ACTIVE
        newest = self.newest_generation if newest_generation is None else newest_generation
        return replace(
            self,
            stage=self.stage if keeps else stage,
            generation=self.generation if generation is None else generation,
            newest_generation=newest,
            fits=self.fits if fits is None else fits,
        )


class Liveness(StrEnum):
    """The result of an HTTP request to a worker's port, as a sign of whether its process lives."""

    ALIVE = "alive"  # it answered
    REFUSED = "refused"  # no process listens: the worker is gone, its machine is up
    SILENT = "silent"  # no answer in time: frozen, overloaded or cut off; proves nothing


@dataclass(frozen=True)
class ProbeResult:
    liveness: Liveness
    name: str | None = None  # who answered ("w3"), perhaps another one than was asked


@dataclass(frozen=True)
class RingMember(Record):
    """A member of a generation; its index in `members` is its rank."""

    id: int
    host: str
    slot: int
    address: str
    port: int


END = 1 << 40  # a worker's number for the end of its job: above those of all generations


@dataclass(frozen=True)
class Generation(Record):
    """The membership of one ring, at the node `generation`; only the leader writes this record."""

    RENAMED: ClassVar[Mapping[str, str]] = {"seats": "members", "sync_root": "state_source"}

    number: int  # grows with each change
    term: int  # of the leader that wrote it
    members: tuple[RingMember, ...]  # in rank order; empty: the job ends (`END`)
    state_source: int  # the worker that sends its state to `joined`; -1: none stays
    joined: tuple[int, ...]  # ids of the members that need the state of the job
    left: tuple[int, ...]  # ids of members of the generation before that are not of this one
    reason: str
    scope: str = ""  # unguessable prefix in the rendezvous store of rank 0's daemon
    # The ring that trains until the switch. Empty at the start and after a crash; so a worker whose
    # ring broke waits for a generation without.
    previous: tuple[RingMember, ...] = ()
    began_with: int = 0  # workers in the first generation of this start; 0: not known (older edl)
    # The calls of Keras' `fit` before the one for which `joined` are ready. The other workers enter
    # the generation only while they are in that call.
    fits: int = 0
    # Newcomers join at the start of an epoch, since one has stepped back (`mismatch`). Each later
    # generation repeats it.
    at_epochs: bool = False

    @property
    def waits_for_epoch(self) -> bool:
        """Whether the ring before trains on until its epoch ends, since newcomers join then."""
        return self.at_epochs and bool(self.joined and self.previous)

    @property
    def repairs(self) -> bool:
        """Whether no ring trains until this one is built: a ring broke, or the job just starts."""
        return not self.previous

    @property
    def worker_ids(self) -> tuple[int, ...]:
        return tuple(member.id for member in self.members)

    def rank_of(self, worker: int) -> int | None:
        return self.worker_ids.index(worker) if worker in self.worker_ids else None

    def after(self, before: Generation | None) -> Generation:
        """Return a copy of this generation with what each repeats of the one before."""
        size = len(self.members) if before is None else before.began_with or len(before.members)
        at_epochs = self.at_epochs or (before is not None and before.at_epochs)
        return replace(self, began_with=size, at_epochs=at_epochs)

    def as_end(self, reason: str) -> Generation:
        """Return the generation without members, numbered `END`, that ends the job."""
        empty = replace(self, members=(), previous=(), joined=(), fits=0)
        return replace(empty, number=END, left=self.worker_ids, reason=reason)

    def knows(self, worker: int) -> bool:
        return any(member.id == worker for member in (*self.members, *self.previous))


class RequestKind(StrEnum):
    """The kind of a request to the leader about one worker."""

    DRAIN = "drain"  # the worker leaves; one fewer is wanted
    REPLACE = "replace"  # the worker leaves, and another one comes in the same switch


@dataclass(frozen=True)
class Request(Record):
    """A request to the leader, at `requests/<number>`; the leader writes the outcome into it."""

    kind: str  # a RequestKind; an older edl may not know it
    worker: int = -1
    number: int = -1  # -1: it is not written yet
    done: bool = False  # the leader has answered
    accepted: bool = False
    outcome: str = ""  # the leader's answer in a sentence
    host: str = ""  # for the new worker of a replacement; empty: any


@dataclass(frozen=True)
class Leader(Record):
    term: int  # grows with each leader
    worker: int


@dataclass(frozen=True)
class JobPolicy(Record):
    """The policy by which a job chooses its own size, as text, at the node `policy`."""

    text: str = ""  # of the policy file; empty: the job has no policy
    source: str = ""  # the file or function that it comes from, for messages
    hold_s: float = 0.0  # so long it leaves a size alone that a person has asked for
    off: str = ""  # why it was switched off; the leader writes no other field
    # Until when a size is kept, since 1970, by the clock of the person's host; 0: none is. A leader
    # only sees by it that a hold is new, and counts `hold_s` (`ScalingProfile.held_s`).
    held_until_s: float = 0.0

    @property
    def is_on(self) -> bool:
        return bool(self.text) and not self.off

    def held(self, now_s: float) -> JobPolicy:
        return replace(self, held_until_s=now_s + self.hold_s) if self.is_on else self


NO_POLICY = JobPolicy()


# ------------------------------------------------------------
# Count for metrics the steps of one worker, and how long they took (`StepTotals`).

STEP_BOUNDS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)


class StepTotals:
    """The steps of one worker; the training thread adds one, the port's thread reads."""

    def __init__(self) -> None:
        self.steps = 0  # since this worker joined
        # Without the first one in each ring, which also has the building of that ring in it.
        self.durations = Histogram(STEP_BOUNDS_S)
        # Its own time, that for which it waited for data, and from its gradients to their mean.
        self.compute_us = self.data_us = self.reduce_us = 0


# ------------------------------------------------------------
# Define the parts of a worker's switch to another ring (`SwitchParts`).


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
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name.endswith("_s")}


# ------------------------------------------------------------
# Define the records of a job's progress, as a worker counts it and as the leader reports it.
#
# `WorkerProgress` is a worker's, `TrainingStatus` the leader's. Fields that both have are declared
# in their base `JobProgress`. Each field is explained in its annotation. `make docs` generates the
# table of `edl status --json` from this module and from `status`.


@dataclass(frozen=True, kw_only=True)
class JobProgress(Record):
    """The progress of a job: steps, epoch, samples, slowest worker, noise scale and global batch.

    All workers of the ring count the same values, except ``median_step_s``, which is that worker's.
    Each field is explained in its annotation. Objects are made of the subclasses.
    """

    step: Annotated[int, "complete steps"] = 0
    epoch: Annotated[int, "counted from 0"] = 0
    epoch_done: Annotated[int, "samples of this epoch that are trained"] = 0
    epoch_total: Annotated[
        int, "samples of an epoch; 0: of a stream, or the script keeps its own place in its data"
    ] = 0
    untrained: Annotated[
        int,
        "samples that were not trained because the script's loop left an epoch before its end; "
        "those of a stream are not counted",
    ] = 0
    left: Annotated[
        float | None, "samples to train until the end of the job; null: nobody knows"
    ] = None
    median_step_s: Annotated[float, "of the last 50 steps of one worker"] = 0.0
    slowest: Annotated[
        str | None, "worker that computes at least twice as long in a step as the others do"
    ] = None
    slowest_s: Annotated[float, "what it computes in a step, the median of its last ones"] = 0.0
    others_s: Annotated[float, "what the others do, the median of theirs"] = 0.0
    noise_scale: Annotated[
        float | None,
        "samples: up to a global batch of so many a larger one is worth it "
        "([the gradient noise scale](../guides/batch-and-learning-rate.md#how-large-a-batch)); "
        "null: nobody can say",
    ] = None
    noise_is_biased: Annotated[bool, "it was measured by a single worker"] = False
    global_batch: Annotated[
        int, "samples of a batch of all workers together; 0: the script reads its own data"
    ] = 0


@dataclass(frozen=True)
class ProgressSample(Record):
    """The counters of one worker at the end of a step; the difference of two gives a throughput."""

    worker: int
    generation: int
    size: int  # of its ring
    epoch: int  # from 0
    step: int  # complete steps of the job
    samples: int  # that all workers have trained since this worker joined
    at_s: float  # when the step ended, by a monotonic clock of this worker alone


@dataclass(frozen=True, kw_only=True)
class WorkerProgress(JobProgress):
    """The progress that one worker reports at the end of each step."""

    generation: int = 0  # 0: it has not been in a ring
    size: int = 0  # of its ring
    samples_total: int = 0  # that all workers have trained since this worker joined
    # When the step ended, by the worker's monotonic clock: other processes get it unchanged, and
    # may only subtract it from that of another step of this worker.
    counted_at: float = 0.0
    # The same by the clock of the process that holds this object; `for_others` replaces it.
    updated_at: float = 0.0

    @property
    def trains(self) -> bool:
        return self.generation > 0 and (self.median_step_s > 0 or self.samples_total > 0)

    def for_others(self, now_s: float) -> dict[str, Any]:
        values = self.to_json()
        return values | {"quiet_s": round(now_s - values.pop("updated_at"), 3)}

    def sample(self, worker: int) -> ProgressSample:
        return ProgressSample(
            worker=worker,
            generation=self.generation,
            size=self.size,
            epoch=self.epoch,
            step=self.step,
            samples=self.samples_total,
            at_s=self.counted_at,
        )


def is_status_due(
    progress: WorkerProgress, told_generation: int, passed_s: float, period_s: float
) -> bool:
    # By that a cluster knows that the job has started, and in a large one the period is long.
    begins = progress.trains and progress.generation != told_generation
    return begins or passed_s >= period_s


@dataclass(frozen=True, kw_only=True)
class TrainingStatus(JobProgress):
    """The record at ZooKeeper's node ``status``: a job's progress as its leader reports it.

    The leader overwrites this record. It also says what the leader does or waits for (``reason``).
    Each field is explained in its annotation, here or in :class:`JobProgress`. `edl status` shows a
    :class:`edl.status.JobStatus`, which has the fields of this record and more.
    """

    samples_per_s: Annotated[float, "of all workers together, over the last 3 s"] = 0.0
    quiet_s: Annotated[float, "since the last complete step, at `updated_at_s`"] = 0.0
    progress_sample: Annotated[
        ProgressSample | None,
        "counters of one worker at the end of a step, for `edl profile`; null: no worker of a ring "
        "has answered",
    ] = None
    reason: Annotated[
        str,
        "of the state; while it runs, what the leader does or waits for, or who holds the job up",
    ] = ""
    policy: Annotated[str, "what the job's policy says of its size; empty: it has none"] = ""
    updated_at_s: Annotated[
        float,
        "when the leader wrote step, epoch and rates, in seconds since 1970: every "
        "`status_period_s`, and when a new ring has trained; 0: never",
    ] = 0.0

    @classmethod
    def of(cls, progress: JobProgress, **more: Any) -> TrainingStatus:
        """Return the status of a job that has made ``progress``.

        The fields of :class:`JobProgress` are copied; those of a subclass are not. ``more`` has the
        values of the other fields by name, such as ``reason``; a field that is not in it has its
        default.
        """
        counted = {field.name: getattr(progress, field.name) for field in fields(JobProgress)}
        return cls(**counted, **more)
