"""Hold what a launcher knows and what it may decide, and update these values from ZooKeeper.

A launcher keeps worker processes: the agent of `edl run` keeps those of a host, and `edl-worker`
under horovodrun keeps that of a slot. What both decide alike is in :mod:`edl.core.host.job_end`
(the end of the job) and :mod:`edl.core.host.restart_policy` (one process); what each adds is in
:mod:`edl.core.host.agent` and :mod:`edl.core.host.horovodrun_slot`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeVar

from edl.core.host.process import BACKOFF_MAX_S, Process, seen
from edl.core.job.placement import Placement
from edl.core.records import Job, JobState, Member, RingMember
from edl.core.snapshot import Snapshot


@dataclass(frozen=True)
class SupervisorLimits:
    """The time limits of a launcher, in seconds, and how often something may happen."""

    start_timeout_s: float = 120.0  # for a script to call `edl.init()`
    backoff_max_s: float = BACKOFF_MAX_S  # the longest pause of a slot whose workers die
    frozen_s: float = 10.0  # for a worker that is not frozen to answer
    settle_s: float = 1.0  # a place left by a worker stays free before somebody else gets it
    kill_s: float = 5.0  # from SIGTERM to SIGKILL
    exit_timeout_s: float = 30.0  # for the exit handlers of libraries once a script has ended
    exit_s: float = 2.0  # for a process to be gone once these have ended, too
    gone_s: float = 10.0  # the same once the leader has proof that it is gone: its port is closed
    stop_s: float = 30.0  # for a ring to end after `edl stop`
    stuck_s: float = 5.0  # the same while it completes no step, and for `stuck_steps` usual steps;
    stuck_steps: int = 5  # nothing is lost then
    leaderless_s: float = 10.0  # the same without a leader; longer than an election by expiry
    finish_s: float = 600.0  # for what a script does after its training: evaluate, save, upload
    restarts: int = 3  # how often a job may lose all its workers without a new checkpoint
    absent_s: float = 20.0  # a worker that runs opens a lost session again within seconds
    lost_s: float = 10.0  # the same for those of other launchers, when all of ours have died
    # After the death of a worker, for the others to repair their ring and to train their next step
    # before its replacement, which is forked at once, takes a part of the same processors.
    repair_s: float = 0.13
    poll_s: float = 0.2  # between two looks at the processes, at most
    read_s: float = 1.0  # between two readings of ZooKeeper, at most; changes come earlier
    away_s: float = 120.0  # without ZooKeeper and without a worker there is nothing to wait for
    killed_s: float = 10.0  # for processes that were killed to be gone

    def stop_limit_s(self, job: Job) -> float:
        """Return how long the ring of ``job`` may take to end after `edl stop`, in seconds.

        If the job has a checkpoint, the time includes that of saving.
        """
        return self.stop_s + (job.spec.settings.save_timeout_s if job.checkpoint else 0.0)


@dataclass(frozen=True)
class RingDeath:
    """The death of all workers of a ring.

    Attributes:
        generation: the generation of the ring.
        saved_step: the step of the newest checkpoint at that time.
        at: when the death was seen, by the launcher's clock, in seconds.
    """

    generation: int
    saved_step: int  # of the newest checkpoint at that time
    at: float


@dataclass(frozen=True)
class SupervisorState:
    """What a launcher knows besides ZooKeeper's records, such as its processes and limits.

    Times are by the launcher's own clock, in seconds.
    """

    host: str
    token: str  # every launch of this launcher begins with it
    processes: tuple[Process, ...] = ()  # started by it, or adopted from an earlier one; by start
    limits: SupervisorLimits = SupervisorLimits()
    script: str = "the script"  # for messages
    is_submitter: bool = False  # it has started the job, and does not only take part in it
    state: JobState = JobState.RUNNING  # of the job
    state_since: float = 0.0  # since when the job has it
    step: tuple[int, int] = (-1, -1)  # generation and step, as the leader has said them
    stepped: float = 0.0  # when that was last seen to change
    ring_deaths: tuple[RingDeath, ...] = ()
    ended: frozenset[int] = frozenset()  # workers of whose end some launcher has written an event
    answering: frozenset[int] = frozenset()  # of those not in ZooKeeper: their own ports answer
    overdue: bool = False  # slots of this host had to be given back by now

    @property
    def living(self) -> tuple[Process, ...]:
        """The processes that run."""
        return tuple(p for p in self.processes if p.alive)

    def process(self, attempt_id: str) -> Process:
        """Return the process that was started as ``attempt_id``."""
        return next(p for p in self.processes if p.attempt_id == attempt_id)

    def having(self, process: Process) -> Self:
        """Return this state with ``process`` in place of what was known of it."""
        newer = (process if p.attempt_id == process.attempt_id else p for p in self.processes)
        return replace(self, processes=tuple(newer))


State = TypeVar("State", bound=SupervisorState)


@dataclass(frozen=True)
class Start:
    """An order to the launcher to start one worker process.

    Attributes:
        slot: the slot, a number of its host.
        failures: the failed starts in a row in this slot before this one.
        reason: why, for the log.
        replaces: whether the last worker of the slot was in a ring and ended with an error, so that
            the others may be about to repair their ring.
    """

    slot: int
    failures: int
    reason: str
    replaces: bool = False


@dataclass(frozen=True)
class EndProcess:
    """An order to end a process: SIGTERM, or with ``kill`` SIGKILL to its whole process group."""

    attempt_id: str
    kill: bool
    reason: str


@dataclass(frozen=True)
class DisableSlot:
    """An order to disable a slot after the end of one of its processes.

    Attributes:
        attempt_id: the process that has ended.
        slot: the number of the slot.
        desired: host -> workers wanted without the slot.
        reason: why, in a sentence.
    """

    attempt_id: str
    slot: int
    desired: Placement
    reason: str


@dataclass(frozen=True)
class JobOutcome:
    """The end of a job as a launcher has to report it: its state, the reason, and the exit code."""

    state: JobState
    reason: str
    exit_code: int = 0


@dataclass(frozen=True)
class SupervisorDecision:
    """What a launcher does now, with the reason; ``exit_code`` is set if it ends with that code."""

    reason: str
    starts: tuple[Start, ...] = ()
    endings: tuple[EndProcess, ...] = ()
    outcome: JobOutcome | None = None
    warnings: tuple[str, ...] = ()
    disable_slot: DisableSlot | None = None
    exit_code: int | None = None


def observe(processes: Iterable[Process], snapshot: Snapshot, now: float) -> tuple[Process, ...]:
    """Return the ``processes`` with what ZooKeeper says of each in ``snapshot``."""
    return tuple(seen(process, snapshot, now) for process in processes)


def relevant(processes: Sequence[Process], snapshot: Snapshot) -> tuple[Process, ...]:
    """Return those of ``processes`` that the launcher still needs for a decision, in their order.

    A process that runs is needed. A process that has exited is needed in three cases: it is the
    last one of its slot (its failures decide how long the next start waits); it is a member of the
    present ring (when all members are dead, the job is lost); or it failed in the ring that trained
    the newest step. No step may follow that one, and then the job ends with its exit code.

    Args:
        processes: the starts of workers that the launcher knows, running or exited.
        snapshot: what ZooKeeper holds of the job; its ring and its newest step are used.
    """
    ring, reading = snapshot.state_owners, snapshot.status.progress_sample
    trained_in = reading.generation if reading is not None else 0
    last = {p.slot: p.attempt_id for p in sorted(processes, key=lambda p: p.started)}

    def matters(p: Process) -> bool:
        failed_last = p.failed and p.seated and p.generation >= trained_in
        return p.alive or last[p.slot] == p.attempt_id or p.worker in ring or failed_last

    return tuple(p for p in processes if matters(p))


def noted(own: State, snapshot: Snapshot, now: float) -> State:
    """Return ``own`` updated with the job's state, step and ring deaths in ``snapshot``.

    The launcher's processes must have been compared with ``snapshot`` already (:func:`observe`).
    """
    generation = snapshot.generation.number if snapshot.generation else 0
    step = (generation, snapshot.status.step)
    if step != own.step:
        own = replace(own, step=step, stepped=now)
    if snapshot.job.state is not own.state:
        own = replace(own, state=snapshot.job.state, state_since=now)
    limits = replace(own.limits, exit_timeout_s=snapshot.job.spec.settings.exit_timeout_s)
    own = replace(own, processes=relevant(own.processes, snapshot), limits=limits)
    return replace(own, ring_deaths=ring_deaths(own, snapshot, now))


def without_zookeeper(own: State) -> State:
    """Return ``own`` while ZooKeeper is away.

    Times without a session and the death of the present ring are forgotten, because the others have
    to come back, too, before their absence means much.
    """
    deaths = own.ring_deaths
    if deaths and deaths[-1].generation == own.step[0]:
        deaths = deaths[:-1]
    processes = tuple(replace(p, no_session_since=None) for p in own.processes)
    return replace(own, processes=processes, ring_deaths=deaths)


def ring_deaths(own: SupervisorState, snapshot: Snapshot, now: float) -> tuple[RingDeath, ...]:
    """Return the known deaths of rings, with the present ring's if all its workers are dead.

    If one of them is back, its ring's death is removed again.
    """
    generation, deaths = snapshot.generation, own.ring_deaths
    if generation is None:
        return deaths
    known = bool(deaths) and deaths[-1].generation == generation.number
    lost = bool(dead_ring(snapshot, own))
    if lost == known:
        return deaths
    if known:
        return deaths[:-1]
    return (*deaths, RingDeath(generation.number, snapshot.job.saved_step, now))


def dead_ring(snapshot: Snapshot, own: SupervisorState) -> tuple[Process, ...]:
    """Return this launcher's processes of the current ring if no worker of that ring is left.

    None of these processes runs, and no other member is in ZooKeeper or answers on its port. Until
    a switch the ring is the one before it, with the workers that are to leave: they have the state,
    too. If a worker is left, the result is empty.
    """
    members = snapshot.generation.worker_ids if snapshot.generation else ()
    left = {p.worker for p in own.living} | {m.id for m in foreign(snapshot, own)} | own.answering
    return (
        ()
        if left & snapshot.state_owners
        else tuple(p for p in own.processes if p.worker in members)
    )


def members_to_ask(snapshot: Snapshot, own: SupervisorState) -> tuple[RingMember, ...]:
    """Return the workers of other launchers that should be asked whether they live.

    They are asked when no member of the ring is known to live. Ring members that are known to be
    dead are left out. The result is empty while a worker of the ring is known to live or the job is
    over.
    """
    generation, silent = snapshot.generation, replace(own, answering=frozenset())
    if generation is None or snapshot.job.state.over or not dead_ring(snapshot, silent):
        return ()
    dead = {p.worker for p in own.processes} | own.ended | snapshot.evicted.keys()
    members = {member.id: member for member in (*snapshot.ring, *generation.members)}
    return tuple(member for member in members.values() if member.id not in dead)


def foreign(snapshot: Snapshot, own: SupervisorState) -> list[Member]:
    """Return the members of the job that this launcher neither started nor took over."""
    ours = {p.attempt_id for p in own.processes}
    return [
        m
        for m in snapshot.members
        if not m.attempt_id.startswith(own.token) and m.attempt_id not in ours
    ]
