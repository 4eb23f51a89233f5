"""Define the records of a job in ZooKeeper: plain values, which are written as JSON.

There is one class for each kind of node: :class:`Job`, :class:`Desired`, :class:`Assigned`,
:class:`Host`, :class:`SlotRecord`, :class:`Member`, :class:`Generation`, :class:`Request`,
:class:`Leader` and :class:`JobPolicy`. ``coordination`` stores them, :mod:`edl.core.job.membership`
makes the leader's decisions from them, the workers and agents act on them, and the CLI shows them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import ClassVar

from edl.core.job_spec import JobSpec
from edl.core.record import Record
from edl.core.sizes import Sizes


class Stage(StrEnum):
    """The stage of a worker in its life, in this order.

    A worker moves only to a later stage, except that a newcomer which was ``READY`` goes back to
    ``PREPARING`` if the job is in a later call of Keras' `fit`.

    - ``PREPARING``: it starts, or trains its warm-up batch.
    - ``READY``: it may be taken into the next generation.
    - ``ACTIVE``: it is in the ring.
    - ``LEAVING``: it was asked to leave, and is in the ring until a switch.
    - ``FINISHED``: it has trained to the end.
    """

    PREPARING = "preparing"  # starting, warming up
    READY = "ready"  # may be taken into the next generation
    ACTIVE = "active"  # in the ring
    LEAVING = "leaving"  # was asked to leave (SIGTERM), still in the ring until a switch
    FINISHED = "finished"  # trained to the end


class JobState(StrEnum):
    """The state of a job; three of the states are an end (:attr:`over`).

    ``RUNNING``: it starts or trains. ``PAUSED``: it runs, and too few workers are left to train;
    this occurs in a status only, never in the job's record. ``STOPPING``: it was asked to stop, and
    workers still run. ``FINISHED``: it has trained to the end. ``STOPPED``: it has ended because it
    was told to. ``FAILED``: it has ended because it could not go on.
    """

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
    """The record of a job at ZooKeeper's node ``job``: the job's specification and its state.

    In a job that horovodrun started, horovodrun's driver sets the number of workers on each host:
    the record :class:`Assigned` has the driver's numbers, and :class:`Desired` those that the
    driver is asked for.

    Attributes:
        name: the name of the job.
        spec: the specification with which the job was started: its command, sizes and settings.
        state: the state of the job.
        reason: why the job is in this state; may be empty.
        created: when the job was created, in seconds since 1970, for people and for the removal of
            old jobs.
        ended: when the job ended, in seconds since 1970; 0: it has not, or nobody recorded it.
        exit_code: the exit code of `edl run` for this job, once it has ended.
        checkpoint: the directory of the newest checkpoint; empty: there is none.
        saved_step: the step of that checkpoint; -1: there is none, so the job cannot outlive all
            its workers.
        finished_in: the number of the generation whose ring has trained to the end; 0: none has.
        driver: the ``address:port`` of horovodrun's driver; empty for a job of `edl run`.
        reserved: whether the job keeps its name until it is over, also while no process of it
            lives: its creator has chosen the token of its run, and counts on it.
        end_within_s: within how many seconds the job is to save everything and end, because it
            is preempted (:mod:`edl.core.job.ending`); 0: it is not preempted.
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
    reserved: bool = False
    end_within_s: float = 0.0

    @property
    def sizes(self) -> Sizes:
        """The rules about the numbers of workers that the job may have, from its specification."""
        return self.spec.sizes


class RequestedBy(StrEnum):
    """The party that set the desired number of workers last.

    ``PERSON``: a person or a program. ``CLUSTER``: the leader of the cluster that the job belongs
    to. ``LAUNCHER``: a host came or left, or a slot was disabled.
    ``PROFILE``: `edl profile` measures other sizes. ``POLICY``: the job's policy. ``LEADER``: the
    leader, because a worker that left after a signal or a drain is not replaced.
    """

    PERSON = "person"  # a person, or a program, chose a size or moves workers; a profile keeps it
    CLUSTER = "cluster"  # the cluster that the job belongs to gives it other slots
    LAUNCHER = "launcher"  # a host comes or leaves, or a slot of it is disabled
    PROFILE = "profile"  # measures other sizes for a while
    POLICY = "policy"  # the job's own rule finds another size better
    LEADER = "leader"  # a worker that a signal or a drain took out is not replaced


@dataclass(frozen=True)
class _Placed(Record):
    """The base of records that have a number of workers for each host.

    Attributes:
        hosts: the name of a host -> its number of workers.
    """

    hosts: Mapping[str, int] = field(default_factory=dict)

    @property
    def np(self) -> int:
        """The number of workers of this record on all hosts together."""
        return sum(self.hosts.values())


@dataclass(frozen=True)
class Reclaim(Record):
    """A demand that a job give back slots of one host that it has borrowed.

    Times are in seconds since 1970, by the clock of the host that demands. Only :attr:`within_s`
    decides, from when a process first saw the demand (``ReclaimTracker``): clocks may differ.

    Attributes:
        host: the name of the host.
        slots: the number of slots to give back.
        asked_s: when the slots were demanded.
        by_s: until when the job's workers must have left the slots.
    """

    host: str
    slots: int
    asked_s: float
    by_s: float  # until then

    @property
    def within_s(self) -> float:
        """How many seconds the job has to give the slots back."""
        return self.by_s - self.asked_s


@dataclass(frozen=True)
class Desired(_Placed):
    """The record of the desired number of workers on each host, at the node ``desired``.

    :mod:`edl.core.job.desired` computes each new value. Under horovodrun ``hosts`` is empty while
    the discovery script is not `edl-discover`: then the number of workers cannot be changed.

    Attributes:
        hosts: the name of a host -> its desired number of workers.
        by: the party that set this value.
        reason: why the value was set.
        at_s: when the value was set, by the wall clock, in seconds since 1970.
        borrowed: host -> how many of its desired workers are in slots which the job has borrowed.
        reclaims: the demands for borrowed slots that are not met yet; a host may have several.
        batch: the global batch that the job's cluster has chosen, in samples; 0: the job chooses.
    """

    by: RequestedBy = RequestedBy.LAUNCHER  # who asked last
    reason: str = ""
    at_s: float = 0.0  # wall clock
    borrowed: Mapping[str, int] = field(default_factory=dict)
    reclaims: tuple[Reclaim, ...] = ()  # that are not done yet
    batch: int = 0


@dataclass(frozen=True)
class Assigned(_Placed):
    """The record of the number of workers that each launcher keeps on its host, at ``assigned``.

    The leader makes the ring's members follow this record. In a job of `edl run` the numbers are
    those of the record :class:`Desired`, and the two are written together. In a job of horovodrun
    they are the numbers that its driver has told to `edl-worker`.

    Attributes:
        hosts: the name of a host -> its assigned number of workers.
        by_slot: whether slots are assigned, as horovodrun does: the workers of a host are those in
            its first slots, a slot whose worker has left is filled again, and a leader does not
            take a worker away. False in a job of `edl run`.
        devices: host -> the numbers of the host's devices (from 0) that workers of this job may
            use. If it is empty, the job is limited on no host. Otherwise the job may use no device
            of a host that is not in it.
    """

    by_slot: bool = False
    devices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def devices_on(self, host: str) -> tuple[int, ...] | None:
        """Return the devices of ``host`` that the job may use, if any; None: it is not limited."""
        return self.devices.get(host, ()) if self.devices else None

    def grants(self, host: str, device: int) -> bool:
        """Return whether a worker on ``host`` may use the device with the number ``device``."""
        allowed = self.devices_on(host)
        return allowed is None or device in allowed

    def most_on(self, host: str, np: int) -> int:
        """Return ``np``, or the number of devices of ``host`` that the job may use, if smaller."""
        allowed = self.devices_on(host)
        return np if allowed is None else min(np, len(allowed))


@dataclass(frozen=True)
class Host(Record):
    """The record of an agent that can start workers on its host, at the node ``hosts/<name>``.

    Attributes:
        name: the name of the host.
        slots: the number of slots that the agent offers.
        address: the network address of the host.
        pid: the process id of the agent.
        leaving: whether the agent was asked to leave the job; other processes set this field.
        requested_np: the number of workers that the agent asks for on its host; 0: for no more.
        disabled: the number of each slot in which no worker is started any more, as a text -> why.
        devices: the numbers of the devices on which the agent may start workers, sorted: those of
            :attr:`Assigned.devices` that it has seen. It starts none on others.
        busy: the numbers of the devices that living processes use, sorted. Others are free.
        machine: a name of the machine and the pid namespace of the agent; empty: not known.
        metrics_port: the port of its metrics of the job; 0: it serves none.
        failing: the slots whose worker ended before it was ready, without one that was ready since
            -> why, after some such ends. The first ring does not wait for them.
    """

    name: str
    slots: int
    address: str
    pid: int = 0
    leaving: bool = False  # set by others: its agent is asked to leave the job
    requested_np: int = 0  # workers that it wants to have, as long as it asks for them
    disabled: Mapping[str, str] = field(default_factory=dict)  # slot -> why it is not used
    devices: tuple[int, ...] = ()  # on which it may start workers
    busy: tuple[int, ...] = ()  # that living processes use
    machine: str = ""
    metrics_port: int = 0
    failing: Mapping[str, str] = field(default_factory=dict)

    def shares_machine(self, other: Host) -> bool:
        """Return whether two agents have one address and, if both say it, one pid namespace."""
        known = {self.machine, other.machine} - {""}
        return self.address == other.address and len(known) < 2

    def is_same_agent(self, other: Host) -> bool:
        """Return whether this record and ``other`` are of one process, an agent of one host."""
        return (self.name, self.pid) == (other.name, other.pid) and self.shares_machine(other)


@dataclass(frozen=True)
class SlotRecord(Record):
    """The record of an `edl-worker` that keeps one slot, at the node ``slots/<host>.<slot>``.

    Only a job under horovodrun has such records. To keep a slot is to start a worker in it, and
    another one when that has ended.

    Attributes:
        host: the name of the host.
        slot: the number of the slot on that host.
        pid: the process id of `edl-worker`.
        disabled: why no worker is started in the slot any more; empty: workers are started.
        ending: whether a signal asked `edl-worker` to end, other than to bar its host.
    """

    host: str
    slot: int
    pid: int = 0
    disabled: str = ""
    ending: bool = False


@dataclass(frozen=True)
class RingFailure(Record):
    """A worker's report that its ring has failed, in the field ``broken`` of its :class:`Member`.

    Attributes:
        generation: the number of the generation whose ring failed.
        step: the last step that the worker completed; -1: the worker has no state yet.
        exchanges: the number of exchanges of objects among all workers, made between two steps
            (:mod:`edl.worker.exchange`), that the worker has completed.
        error: Horovod's error message, shortened.
        blamed_rank: the rank, in that ring, that the error message names; -1: it names none.
        leaves: how often all workers have left an epoch with a batch in hand, as far as it knows.
        at_epochs: whether a newcomer has stepped back, so newcomers join at the start of an epoch.
        gone: the ids of the newcomers that have left the ring with this worker's knowledge.
    """

    generation: int
    step: int  # the last step that it completed; -1: it has no state yet
    exchanges: int = 0  # how many exchanges between steps it has completed
    error: str = ""  # what Horovod said, in short
    blamed_rank: int = -1  # the member that the error is about; -1: it does not say
    leaves: int = 0
    at_epochs: bool = False
    gone: tuple[int, ...] = ()

    def __str__(self) -> str:
        """Return the error message for people, followed by " (rank N)" if it blames a rank."""
        return self.error + (f" (rank {self.blamed_rank})" if self.blamed_rank >= 0 else "")

    @property
    def progress(self) -> tuple[int, int, int]:
        """The triple (step, exchanges, leaves): the worker with the larger one is further.

        It can be compared because all workers make the same of these in the same order.
        """
        return self.step, self.exchanges, self.leaves


@dataclass(frozen=True)
class Member(Record):
    """The record of a worker process, at the node ``members/<id>``; only that worker writes it.

    Attributes:
        id: the number of the worker.
        host: the name of the worker's host.
        slot: the number of the worker's slot on that host.
        address: the network address of the worker.
        port: the port of the HTTP server in the worker's daemon.
        pid: the process id of the worker.
        attempt_id: a token that the agent chose when it started this process; it tells two starts
            apart.
        stage: the stage of the worker.
        generation: the number of the generation whose ring the worker is in; 0: it is in none yet.
        broken: the worker's report that its ring has failed; None: it has not.
        newest_generation: of a newcomer (a worker that is not in the job's ring yet): the number of
            the newest generation that it will not enter any more, because it waits for a later one;
            0: none.
        fits: of a newcomer: the number of calls of Keras' `fit` before the one for which it is
            ready.
        device: the number of the device that the agent has given to the worker; None: none.
    """

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
    device: int | None = None

    @property
    def name(self) -> str:
        """The name of the worker, such as "w3"."""
        return f"w{self.id}"

    @property
    def used_device(self) -> int:
        """The number of the device that the worker uses: ``device``, or ``slot`` if it is None."""
        return self.slot if self.device is None else self.device

    def at(
        self,
        stage: Stage,
        generation: int | None = None,
        newest_generation: int | None = None,
        fits: int | None = None,
    ) -> Member:
        """Return a copy of this record with another ``stage`` and the other arguments' values.

        An argument that is None leaves its field as it is. A worker that was asked to leave stays
        ``LEAVING`` when ``stage`` is ``ACTIVE``, because it enters another ring.
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
    """A member of a generation; its index in :attr:`Generation.members` is its rank.

    The fields are the number, host, slot, network address and HTTP port of the worker, copied from
    its :class:`Member`.
    """

    id: int
    host: str
    slot: int
    address: str
    port: int


END = 1 << 40  # a worker's number for the end of its job: above those of all generations


@dataclass(frozen=True)
class Generation(Record):
    """The membership of one ring, at the node ``generation``; only the leader writes this record.

    A generation without members ends the job: all workers leave after the step in which all of them
    know this generation. Workers replace its number by :data:`END`, so that all have the same one,
    whether they learn of it from the leader or, while ZooKeeper is away, from another worker.

    Attributes:
        number: the number of the generation; it grows with each change.
        term: the term of the leader that wrote the generation.
        members: the members in rank order.
        state_source: the number of the worker that sends its state to ``joined``; -1: none stays.
        joined: the numbers of the members that need the state of the job.
        left: the numbers of the workers that were members of the generation before and are not of
            this one.
        reason: why the generation was made.
        scope: the unguessable prefix of this ring's keys in the rendezvous store of rank 0's
            daemon.
        previous: the members, in rank order, of the ring that trains until the switch. Empty at the
            start and after a crash; so a worker whose ring broke waits for a generation without.
        began_with: the number of workers in the first generation of this start of the job, which
            each later one repeats for newcomers. 0: an older edl wrote the record.
        fits: the number of calls of Keras' `fit` before the one for which the workers in ``joined``
            are ready. The other workers enter the generation only while they are in that call.
        at_epochs: whether newcomers join at the start of an epoch, since one has stepped back
            (:mod:`edl.core.step.mismatch`). Each later generation repeats it.
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
    at_epochs: bool = False

    @property
    def waits_for_epoch(self) -> bool:
        """Whether the ring before trains on until its epoch ends, since newcomers join then."""
        return self.at_epochs and bool(self.joined and self.previous)

    @property
    def repairs(self) -> bool:
        """Whether no ring trains until this one is built: a ring broke, or the job just starts.

        If it is False, the workers of the ring before, ``previous``, train on and agree on the
        switch.
        """
        return not self.previous

    @property
    def worker_ids(self) -> tuple[int, ...]:
        """The numbers of the members, in rank order."""
        return tuple(member.id for member in self.members)

    def rank_of(self, worker: int) -> int | None:
        """Return the rank of ``worker``, or None if that worker is not a member."""
        return self.worker_ids.index(worker) if worker in self.worker_ids else None

    def after(self, before: Generation | None) -> Generation:
        """Return a copy of this generation with what each repeats; ``before`` None: the first."""
        size = len(self.members) if before is None else before.began_with or len(before.members)
        at_epochs = self.at_epochs or (before is not None and before.at_epochs)
        return replace(self, began_with=size, at_epochs=at_epochs)

    def as_end(self, reason: str) -> Generation:
        """Return the generation without members, numbered :data:`END`, that ends the job.

        It follows this generation; its ``left`` are the members of this one, and it has no
        newcomers. ``reason`` says why the job ends.
        """
        empty = replace(self, members=(), previous=(), joined=(), fits=0)
        return replace(empty, number=END, left=self.worker_ids, reason=reason)

    def knows(self, worker: int) -> bool:
        """Return whether the worker numbered ``worker`` is in ``members`` or ``previous``.

        Members that build this ring do not wait for any other worker.
        """
        return any(member.id == worker for member in (*self.members, *self.previous))


class RequestKind(StrEnum):
    """The kind of a request to the leader about one worker.

    ``DRAIN``: the worker leaves, and the desired number of workers on its host falls by one.
    ``REPLACE``: the worker leaves, and another one joins in the same switch.
    """

    DRAIN = "drain"  # the worker leaves; one fewer is wanted
    REPLACE = "replace"  # the worker leaves, and another one comes in the same switch


@dataclass(frozen=True)
class Request(Record):
    """A request to the leader, at ``requests/<number>``; the leader writes the outcome into it.

    Attributes:
        kind: a :class:`RequestKind`; as text, because an older edl may not know it.
        worker: the number of the worker that the request is about.
        number: the number of the request; -1: it is not written yet.
        done: whether the leader has answered.
        accepted: whether the leader does what was asked; False as long as it has not answered.
        outcome: the leader's answer in a sentence.
        host: of a replacement: the name of the host for the new worker; empty: any.
    """

    kind: str  # a RequestKind; an older edl may not know it
    worker: int = -1
    number: int = -1
    done: bool = False
    accepted: bool = False
    outcome: str = ""
    host: str = ""


@dataclass(frozen=True)
class Leader(Record):
    """The record of the leader, at the node ``leader``.

    Attributes:
        term: the leader's term, an integer that grows with each leader.
        worker: the number of the worker that leads.
    """

    term: int
    worker: int


@dataclass(frozen=True)
class JobPolicy(Record):
    """The policy by which a job chooses its own size, as text, at the node ``policy``.

    The leader changes only the field ``off`` of this record, to switch the policy off.

    Attributes:
        text: the text of the policy file; empty: the job has no policy.
        source: the name of the file or function that the policy comes from, for messages.
        hold_s: for how many seconds the policy leaves a size alone that a person has asked for.
        off: why the policy was switched off; empty: it was not.
        held_until_s: until when a size that a person asked for is kept, whatever the policy wants,
            in seconds since 1970, by the clock of the person's host; 0: no size is kept. A leader
            only sees by it that a hold is new, and counts ``hold_s`` (``ScalingProfile.held_s``).
    """

    text: str = ""
    source: str = ""
    hold_s: float = 0.0
    off: str = ""
    held_until_s: float = 0.0

    @property
    def is_on(self) -> bool:
        """Whether the job has a policy that was not switched off."""
        return bool(self.text) and not self.off

    def held(self, now_s: float) -> JobPolicy:
        """Return a copy of this policy as it is after a person has asked for a size.

        The size then stays for ``hold_s`` seconds; ``now_s`` is the time in seconds since 1970, by
        this host's clock. A policy that is off, or empty, is returned unchanged.
        """
        return replace(self, held_until_s=now_s + self.hold_s) if self.is_on else self


NO_POLICY = JobPolicy()
