"""The nouns of a job, as everybody reads and writes them: plain values, JSON on the wire.

``coordination`` stores them in ZooKeeper, ``core.membership`` decides about them, the daemon and
the agent act on them, the CLI shows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import ClassVar

from edl.core.job_spec import JobSpec
from edl.core.plural import verb, workers
from edl.core.progress import TrainingStatus
from edl.core.record import Record
from edl.core.sizes import Sizes


class Stage(StrEnum):
    """Where a worker stands; it moves down this list only."""

    PREPARING = "preparing"  # starting, warming up
    READY = "ready"  # may be taken into the next generation
    ACTIVE = "active"  # in the ring
    LEAVING = "leaving"  # was asked to leave (SIGTERM), still in the ring until a switch
    FINISHED = "finished"  # trained to the end


class JobState(StrEnum):
    """Where a job stands."""

    RUNNING = "running"
    PAUSED = "paused"  # in a status only: it runs, and too few workers are left to train
    STOPPING = "stopping"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def over(self) -> bool:
        return self in (JobState.FINISHED, JobState.STOPPED, JobState.FAILED)

    @property
    def phrase(self) -> str:
        """As "is running", "has failed": what follows the job in a sentence."""
        ended_itself = self in (JobState.FINISHED, JobState.FAILED)
        return f"{'has' if ended_itself else 'is'} {self}"


@dataclass(frozen=True)
class Job(Record):
    """``job``: what it is asked to be (``spec``), and where it stands.

    ``checkpoint`` is the directory of its newest checkpoint and ``saved_step`` the step of that
    one; -1: there is none, so the job cannot outlive all its workers. ``finished_in`` is the
    generation of the ring that has trained to the end.

    A job that horovodrun started has a ``driver``, which says how many workers there are on which
    host: what is :class:`Assigned` follows it, and what is :class:`Desired` it is asked for.
    """

    name: str
    spec: JobSpec
    state: JobState = JobState.RUNNING
    reason: str = ""  # of the state
    created: float = 0.0  # wall clock, for people only
    ended: float = 0.0  # the same
    exit_code: int = 0
    checkpoint: str = ""
    saved_step: int = -1
    finished_in: int = 0
    driver: str = ""  # address:port of the driver of horovodrun

    @property
    def sizes(self) -> Sizes:
        return self.spec.sizes


@dataclass(frozen=True)
class JobEnd:
    """How a job has ended, as its workers say it. See :class:`Job`."""

    state: JobState
    reason: str
    exit_code: int = 0  # of `edl run`
    finished_in: int = 0


class RequestedBy(StrEnum):
    """Who says how many workers are wanted."""

    PERSON = "person"  # or a program: has chosen a size, or moves workers; a profile lets it stand
    LAUNCHER = "launcher"  # a host comes or leaves, or a slot of it is disabled
    PROFILE = "profile"  # measures other sizes for a while
    POLICY = "policy"  # the job's own rule finds another size better
    LEADER = "leader"  # whom a signal or a drain took out is wanted no longer


@dataclass(frozen=True)
class _Placed(Record):
    """So many workers on each host."""

    hosts: Mapping[str, int] = field(default_factory=dict)

    @property
    def np(self) -> int:
        """Over all hosts."""
        return sum(self.hosts.values())


@dataclass(frozen=True)
class Reclaim(Record):
    """Slots of a host that are to be given back. Times in seconds since 1970."""

    host: str
    slots: int
    asked_s: float
    by_s: float  # until then


@dataclass(frozen=True)
class Desired(_Placed):
    """``desired``: how many workers are wanted on each host; written by :mod:`core.job.desired`.

    Under horovodrun there are no ``hosts`` while its discovery script is not `edl-discover`: then
    nobody can ask.
    """

    by: RequestedBy = RequestedBy.LAUNCHER  # who asked last
    reason: str = ""
    at_s: float = 0.0  # wall clock
    borrowed: Mapping[str, int] = field(
        default_factory=dict
    )  # host -> those of its workers that are
    # in slots which were borrowed by the job
    reclaims: tuple[Reclaim, ...] = ()  # that are not done yet, one for a host


@dataclass(frozen=True)
class Assigned(_Placed):
    """``assigned``: how many workers each host has by its launcher; the ring follows that.

    An agent keeps as many as are desired, so the two are written together. The driver of
    horovodrun has its own mind: then this is what `edl-worker` heard from it. It assigns
    ``by_slot``: the workers of a host are those in its first slots, a slot whose worker has left
    is filled again, and no leader takes one away.
    """

    by_slot: bool = False


@dataclass(frozen=True)
class Host(Record):
    """``hosts/<name>``: an agent that can start workers."""

    name: str
    slots: int
    address: str
    pid: int = 0
    leaving: bool = False  # set by others: its agent is asked to leave the job
    requested_np: int = 0  # workers that it wants to have, as long as it asks for them
    disabled: Mapping[str, str] = field(default_factory=dict)  # slot -> why it is not used


@dataclass(frozen=True)
class SlotRecord(Record):
    """``slots/<host>.<slot>``: an `edl-worker` keeps that slot of a job under horovodrun."""

    host: str
    slot: int
    pid: int = 0
    disabled: str = ""  # why no worker is started in it any more


@dataclass(frozen=True)
class RingFailure(Record):
    """A worker's report that the ring of ``generation`` failed under it."""

    generation: int
    step: int  # the last step that it completed; -1: it has no state yet
    exchanges: int = 0  # how many exchanges between steps it has completed
    error: str = ""  # what Horovod said, in short
    blamed_rank: int = -1  # the member that the error is about; -1: it does not say

    def __str__(self) -> str:
        """For people: the error, and who is blamed."""
        return self.error + (f" (rank {self.blamed_rank})" if self.blamed_rank >= 0 else "")

    @property
    def progress(self) -> tuple[int, int]:
        """How far it is: all workers make the same steps and exchanges in the same order."""
        return self.step, self.exchanges


@dataclass(frozen=True)
class Member(Record):
    """``members/<id>``: a worker process. Written by itself only."""

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
    newest_generation: int = (
        0  # a newcomer's: it has taken note of this generation, and waits for a later one
    )
    fits: int = 0  # a newcomer's: it is ready for the fit that follows so many

    @property
    def name(self) -> str:
        return f"w{self.id}"

    def at(
        self,
        stage: Stage,
        generation: int | None = None,
        newest_generation: int | None = None,
        fits: int | None = None,
    ) -> Member:
        """This member in another stage, and with what else is given.

        Who was asked to leave, and enters another ring on the way out, is leaving there too.
        """
        keeps = self.stage is Stage.LEAVING and stage is Stage.ACTIVE
        newest = self.newest_generation if newest_generation is None else newest_generation
        return replace(
            self,
            stage=self.stage if keeps else stage,
            generation=self.generation if generation is None else generation,
            newest_generation=newest,
            fits=self.fits if fits is None else fits,
        )


@dataclass(frozen=True)
class RingMember(Record):
    """A worker's place in a generation; its index there is its rank."""

    id: int
    host: str
    slot: int
    address: str
    port: int


END = 1 << 40  # a worker's number for the end of its job: above those of all generations


@dataclass(frozen=True)
class Generation(Record):
    """``generation``: the membership of one ring. Only the leader writes it.

    ``joined`` need the state of the job, which ``state_source`` sends them. Without members the job
    ends: everybody leaves after the step in which all know it. The workers of a ring call every
    end :data:`END`: some may have it from the leader, and others from who ends the job while
    ZooKeeper is away (:meth:`as_end`).

    ``previous`` is the ring that trains until the switch, in rank order. It is empty where there
    is none, at the start and after a crash; so a worker whose ring broke knows that a generation
    with ``previous`` was planned without its report, and waits for the next one.

    ``began_with`` is how many workers the first generation of this start of the job had. Each later
    generation repeats it, so that newcomers know it when all first workers are gone. 0: written by
    an older edl.

    ``fits``: those who ``joined`` are ready for the fit that follows so many
    (:mod:`edl.core.job.fits`). The others enter only while they are in that one.
    """

    RENAMED: ClassVar[Mapping[str, str]] = {"seats": "members", "sync_root": "state_source"}

    number: int
    term: int
    members: tuple[RingMember, ...]
    state_source: int  # id of a worker
    joined: tuple[int, ...]
    left: tuple[int, ...]
    reason: str
    scope: str = ""  # unguessable prefix in the rendezvous store of rank 0's daemon
    previous: tuple[RingMember, ...] = ()
    began_with: int = 0
    fits: int = 0

    @property
    def repairs(self) -> bool:
        """It was not agreed on in a ring that ran: its members come from a broken one, or none."""
        return not self.previous

    @property
    def worker_ids(self) -> tuple[int, ...]:
        """Worker ids in rank order."""
        return tuple(member.id for member in self.members)

    def rank_of(self, worker: int) -> int | None:
        """Return the rank of a worker; None: it is no member."""
        return self.worker_ids.index(worker) if worker in self.worker_ids else None

    def after(self, before: Generation | None) -> Generation:
        """This generation, with the job's first size as ``before``, the newest one, knows it."""
        size = len(self.members) if before is None else before.began_with or len(before.members)
        return replace(self, began_with=size)

    def as_end(self, reason: str) -> Generation:
        """The end of the job after this ring, as its workers call it."""
        nobody: tuple[RingMember, ...] = ()
        left = self.worker_ids
        return replace(self, number=END, members=nobody, left=left, previous=nobody, reason=reason)

    def knows(self, worker: int) -> bool:
        """Return whether ``worker`` is a member, or was one in the ring before.

        No worker waits for any other one.
        """
        return any(member.id == worker for member in (*self.members, *self.previous))


class RequestKind(StrEnum):
    """What a request is about."""

    DRAIN = "drain"  # the worker leaves; one fewer is wanted
    REPLACE = "replace"  # the same, and as many are wanted: another one comes in the same switch


@dataclass(frozen=True)
class Request(Record):
    """``requests/<number>``: something asked of the leader, which writes the outcome into it.

    ``host``: of a replacement, where it is to come to.
    """

    kind: str  # an Asked; an older edl may not know it
    worker: int = -1
    number: int = -1
    done: bool = False
    accepted: bool = False
    outcome: str = ""
    host: str = ""


@dataclass(frozen=True)
class Leader(Record):
    """``leader``: who leads in which term."""

    term: int
    worker: int


@dataclass(frozen=True)
class JobPolicy(Record):
    """``policy``: the rule by which a job finds its own size. A leader may only switch it off.

    Attributes:
        text: the file; empty: the job has no policy.
        source: where it is from, for messages.
        hold_s: for how long a size stays that a person has asked for.
        off: why it does not count any more; empty: it does.
        held_until_s: until then a person's word counts instead, in seconds since 1970.
    """

    text: str = ""
    source: str = ""
    hold_s: float = 0.0
    off: str = ""
    held_until_s: float = 0.0

    @property
    def is_on(self) -> bool:
        return bool(self.text) and not self.off

    def held(self, now_s: float) -> JobPolicy:
        """After a person has asked for a size at ``now_s``."""
        return replace(self, held_until_s=now_s + self.hold_s) if self.is_on else self


NO_POLICY = JobPolicy()


@dataclass(frozen=True)
class Snapshot:
    """Everything ZooKeeper knows of a job at about one time."""

    job: Job
    hosts: tuple[Host, ...] = ()  # by name
    members: tuple[Member, ...] = ()  # by id
    desired: Desired = Desired()
    assigned: Assigned = Assigned()
    discovered: Mapping[str, int] = field(default_factory=dict)  # host -> slots, by `edl-discover`
    generation: Generation | None = None
    leader: Leader | None = None
    requests: tuple[Request, ...] = ()  # open ones, by number
    evicted: Mapping[int, str] = field(default_factory=dict)  # worker -> reason
    status: TrainingStatus = field(default_factory=TrainingStatus)
    slots: tuple[SlotRecord, ...] = ()  # by host and slot
    policy: JobPolicy = NO_POLICY

    @property
    def paused(self) -> str:
        """Why a job that runs does not train: too few workers are left; empty: they are enough."""
        job, generation = self.job, self.generation
        left = len(generation.members) if generation is not None else 0
        if job.state is not JobState.RUNNING or not left or job.sizes.enough(left):
            return ""
        limit_s = job.spec.settings.elastic_timeout_s
        return (
            f"paused: {workers(left)} {verb(left)} left and min_np is {job.sizes.min_np}; others "
            f"are waited for, at most {limit_s:g} s"
        )

    @cached_property
    def switched(self) -> bool:
        """Whether a member adopted the generation: then its ring was built, with all members."""
        new = self.generation
        if new is None:
            return False
        seated = frozenset(new.worker_ids)
        return any(m.generation >= new.number and m.id in seated for m in self.members)

    @cached_property
    def ring(self) -> tuple[RingMember, ...]:
        """The ring that holds the job's state: the one before, until somebody has switched."""
        new = self.generation
        if new is None:
            return ()
        return new.members if self.switched or not new.previous else new.previous

    @property
    def state_owners(self) -> frozenset[int]:
        """The workers that may hold the job's state: of the ring, and of one that is built now."""
        members = (*self.ring, *(self.generation.members if self.generation is not None else ()))
        return frozenset(member.id for member in members)

    @property
    def replaced(self) -> frozenset[int]:
        """The workers in whose places others are to come."""
        return frozenset(r.worker for r in self.requests if r.kind == RequestKind.REPLACE)

    @property
    def available(self) -> tuple[Host, ...]:
        """The hosts that have slots for workers: those with an agent, and the discovered ones."""
        return (*self.hosts, *as_hosts(self.discovered))

    def present_in(self, desired: Mapping[str, int]) -> frozenset[str]:
        """Those present when ``desired`` is newer: who got more meanwhile has come meanwhile."""
        before = self.desired.hosts
        return self.present | {name for name, n in desired.items() if n > before.get(name, 0)}

    @property
    def present(self) -> frozenset[str]:
        """The hosts that are not gone.

        A host is gone when it has no agent, no worker in ZooKeeper and no member in the ring: all
        three, for sessions may end, all at once, while the ring goes on.
        """
        members = self.generation.members if self.generation else ()
        return frozenset(
            (
                *(h.name for h in self.hosts),
                *(m.host for m in self.members),
                *(s.host for s in members),
            )
        )

    def forgettable(self, keep: int) -> tuple[int, ...]:
        """The evicted that are neither members nor known to the generation, but the newest."""
        here = {member.id for member in self.members}
        gone = sorted(
            worker
            for worker in self.evicted
            if worker not in here and not (self.generation and self.generation.knows(worker))
        )
        return tuple(gone[: max(0, len(gone) - keep)])


def as_hosts(discovered: Mapping[str, int]) -> tuple[Host, ...]:
    """The hosts with these slots, by name."""
    return tuple(Host(name, slots, "") for name, slots in sorted(discovered.items()))
