"""Define a launcher's own state and its decisions, and update the state from ZooKeeper.

A launcher is an agent, which keeps the workers of a host, or an `edl-worker` under horovodrun,
which keeps that of a slot. Both share :mod:`edl.host.job_end` and :mod:`edl.host.restart`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self, TypeVar

from edl.host.process import BACKOFF_MAX_S, Process, seen
from edl.job.placement import Placement, has_too_few_places
from edl.job.run import JobEnd
from edl.job.snapshot import Snapshot, since
from edl.records import Job, JobState, Member, Reclaim, RingMember


@dataclass(frozen=True)
class SupervisorLimits:
    """The limits of a launcher (an agent or an `edl-worker`): seconds, and two numbers."""

    start_timeout_s: float = 120.0  # for a script to call `edl.init()`
    backoff_max_s: float = BACKOFF_MAX_S  # the longest pause between starts in a slot
    frozen_s: float = 10.0  # without a session and an answer for so long, a worker is frozen
    suspended_s: float = 1.0  # by SIGSTOP; then it is ended if others wait for it; 0: it is not
    settle_s: float = 1.0  # that the slot of a worker that left stays empty
    kill_s: float = 5.0  # from SIGTERM to SIGKILL
    exit_timeout_s: float = 30.0  # for the exit handlers of libraries, after the script
    exit_s: float = 2.0  # for a process to be gone after its exit handlers
    gone_s: float = 10.0  # the same after the leader has proof of its end, as a closed port
    stop_s: float = 30.0  # for a ring to end after `edl stop`
    stuck_s: float = 5.0  # the same if it completes no step; at least `stuck_steps` usual steps
    stuck_steps: int = 5
    leaderless_s: float = 10.0  # the same without a leader; longer than an election
    finish_s: float = 600.0  # for what a script does after its training: evaluate, save, upload
    restarts: int = 3  # how often a job may lose all workers after the same checkpoint
    # more than `start_timeout_s` for the hosts of a job to come: a host whose agent died gets
    # another
    gather_s: float = 30.0
    absent_s: float = 20.0  # for a worker never in a ring to open another session
    lost_s: float = 10.0  # the same for ring workers of other launchers, all of ours being dead
    # After the death of a worker, for the others to repair their ring and to train their next step
    # before its replacement, which is forked at once, takes a part of the same processors.
    repair_s: float = 0.13
    poll_s: float = 0.2  # the longest between two checks of the processes
    read_s: float = 1.0  # the same of ZooKeeper; a change is read at once
    # that a launcher without workers waits for ZooKeeper, or for the agent that told them to end
    away_s: float = 120.0
    killed_s: float = 10.0  # for killed processes to be gone

    @property
    def hosts_limit_s(self) -> float:
        # Less than the 2 * `start_timeout_s` after which workers give up waiting for the first
        # ring, so that the job ends with the reason.
        return self.start_timeout_s + min(self.gather_s, self.start_timeout_s / 2)

    def stop_limit_s(self, job: Job) -> float:
        if job.end_within_s:
            return job.end_within_s
        return self.stop_s + (job.spec.settings.save_timeout_s if job.checkpoint else 0.0)


@dataclass(frozen=True)
class RingDeath:
    generation: int
    saved_step: int  # of the newest checkpoint then; -1: none
    at: float


@dataclass(frozen=True)
class SupervisorState:
    """A launcher's own state, which is not in ZooKeeper; times by its own clock, in seconds."""

    host: str
    token: str  # begins the `attempt_id` of each of its processes
    processes: tuple[Process, ...] = ()  # started or taken over, in order of their starts
    limits: SupervisorLimits = SupervisorLimits()
    script: str = "the script"  # for messages
    is_submitter: bool = False  # it has started the job
    state: JobState = JobState.RUNNING
    state_since: float = 0.0
    preempted_since: float | None = None  # None: it is not
    step: tuple[int, int] = (-1, -1)  # (newest generation, last step) read last
    stepped: float = 0.0  # when `step` was last seen to change
    ring_deaths: tuple[RingDeath, ...] = ()  # in order of time
    ended: frozenset[int] = frozenset()  # workers whose end any launcher has logged
    answering: frozenset[int] = frozenset()  # not in ZooKeeper, but on their ports
    # workers of the ring that answer while one of ours is suspended for too long
    waiting: frozenset[int] = frozenset()
    overdue: bool = False  # the time to give back borrowed slots of this host has passed
    reclaims_s: Mapping[Reclaim, float] = field(default_factory=dict)  # since first seen
    # a job that has not begun has had too few places on its hosts to begin
    too_few_since: float | None = None

    @property
    def living(self) -> tuple[Process, ...]:
        return tuple(p for p in self.processes if p.alive)

    def process(self, attempt_id: str) -> Process:
        return next(p for p in self.processes if p.attempt_id == attempt_id)

    def having(self, process: Process) -> Self:
        newer = (process if p.attempt_id == process.attempt_id else p for p in self.processes)
        return replace(self, processes=tuple(newer))


State = TypeVar("State", bound=SupervisorState)


@dataclass(frozen=True)
class Start:
    slot: int
    failures: int  # in a row in this slot before
    reason: str
    # the slot's last worker was in a ring and failed: the others may be about to repair it
    replaces: bool = False
    device: int | None = None  # None: the job's devices here are not limited
    variables: Mapping[str, str] = field(default_factory=dict)  # that tell the worker its device


@dataclass(frozen=True)
class EndProcess:
    attempt_id: str
    kill: bool  # SIGKILL to its whole process group, else SIGTERM
    reason: str


@dataclass(frozen=True)
class DisableSlot:
    attempt_id: str  # of the process that has ended
    slot: int
    desired: Placement  # workers by host without the slot
    reason: str


@dataclass(frozen=True)
class SupervisorDecision:
    """What a launcher does next, and why; it carries it out itself."""

    reason: str
    starts: tuple[Start, ...] = ()
    endings: tuple[EndProcess, ...] = ()
    outcome: JobEnd | None = None  # None: the job goes on
    warnings: tuple[str, ...] = ()  # for the user
    disable_slot: DisableSlot | None = None
    exit_code: int | None = None  # None: the launcher goes on


def observe(processes: Iterable[Process], snapshot: Snapshot, now: float) -> tuple[Process, ...]:
    return tuple(seen(process, snapshot, now) for process in processes)


def relevant(processes: Sequence[Process], snapshot: Snapshot) -> tuple[Process, ...]:
    """Return those of `processes` that the launcher still needs for a decision, in their order."""
    ring, reading = snapshot.state_owners, snapshot.status.progress_sample
    trained_in = reading.generation if reading is not None else 0
    last = {p.slot: p.attempt_id for p in sorted(processes, key=lambda p: p.started)}

    def matters(p: Process) -> bool:
        failed_last = p.failed and p.seated and p.generation >= trained_in
        return p.alive or last[p.slot] == p.attempt_id or p.worker in ring or failed_last

    # The last of a slot says how long its next start waits; when all of the ring are dead the job
    # is lost; and one that failed in the newest step's ring gives the job its exit code.
    return tuple(p for p in processes if matters(p))


def noted(state: State, snapshot: Snapshot, now: float) -> State:
    """Return a copy of `state` with what `snapshot` says: the job's state, its step, dead rings."""
    generation = snapshot.generation.number if snapshot.generation else 0
    step = (generation, snapshot.status.step)
    if step != state.step:
        state = replace(state, step=step, stepped=now)
    if snapshot.job.state is not state.state:
        state = replace(state, state=snapshot.job.state, state_since=now)
    if snapshot.job.end_within_s and state.preempted_since is None:
        state = replace(state, preempted_since=now)
    limits = replace(state.limits, exit_timeout_s=snapshot.job.spec.settings.exit_timeout_s)
    too_few = since(state.too_few_since, has_too_few_places(snapshot), now)
    processes = relevant(state.processes, snapshot)
    state = replace(state, processes=processes, limits=limits, too_few_since=too_few)
    return replace(state, ring_deaths=ring_deaths(state, snapshot, now))


def without_zookeeper(state: State) -> State:
    """Return `state` without what an outage of ZooKeeper makes void: absences and a dead ring."""
    # Workers and agents need some time to open their sessions again: none is dead for that.
    deaths = state.ring_deaths
    if deaths and deaths[-1].generation == state.step[0]:
        deaths = deaths[:-1]
    processes = tuple(replace(p, no_session_since=None) for p in state.processes)
    return replace(state, processes=processes, ring_deaths=deaths, too_few_since=None)


def ring_deaths(state: SupervisorState, snapshot: Snapshot, now: float) -> tuple[RingDeath, ...]:
    """Return the known deaths of rings, the present one's, too, while all its workers are dead."""
    generation, deaths = snapshot.generation, state.ring_deaths
    if generation is None:
        return deaths
    known = bool(deaths) and deaths[-1].generation == generation.number
    lost = bool(dead_ring(snapshot, state))
    if lost == known:
        return deaths
    if known:
        return deaths[:-1]
    return (*deaths, RingDeath(generation.number, snapshot.job.saved_step, now))


def dead_ring(snapshot: Snapshot, state: SupervisorState) -> tuple[Process, ...]:
    """Return our processes of the newest generation if no worker of any launcher has its state."""
    members = {member.id for member in snapshot.newest_members}
    left = {m.id for m in foreign(snapshot, state)} | state.answering
    if (left | {p.worker for p in state.living}) & snapshot.state_owners:
        return ()
    return tuple(p for p in state.processes if p.worker in members)


def members_to_ask(snapshot: Snapshot, state: SupervisorState) -> tuple[RingMember, ...]:
    """Return the workers of other launchers to ask whether they live, if none is known to."""
    generation, silent = snapshot.generation, replace(state, answering=frozenset())
    if generation is None or snapshot.job.state.over or not dead_ring(snapshot, silent):
        return ()
    dead = {p.worker for p in state.processes} | state.ended | snapshot.evicted.keys()
    members = {member.id: member for member in (*snapshot.ring, *generation.members)}
    return tuple(member for member in members.values() if member.id not in dead)


def foreign(snapshot: Snapshot, state: SupervisorState) -> list[Member]:
    """Return the records of the job's workers that this launcher neither started nor took over."""
    ours = {p.attempt_id for p in state.processes}
    return [
        m
        for m in snapshot.members
        if not m.attempt_id.startswith(state.token) and m.attempt_id not in ours
    ]
