"""Define a launcher's own state and its decisions, and update the state from ZooKeeper.

Before each decision a launcher updates its processes by :func:`observe` and its state by
:func:`noted`; a decision is a :class:`SupervisorDecision`.

A launcher keeps worker processes: the agent of `edl run` keeps those of a host, and `edl-worker`
under horovodrun keeps that of a slot. The decisions common to both are in
:mod:`edl.core.host.job_end` (the end of the job) and :mod:`edl.core.host.restart_policy` (one
process); the agent's own are in :mod:`edl.core.host.agent`, those of `edl-worker` in
:mod:`edl.core.host.horovodrun_slot`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self, TypeVar

from edl.core.host.process import BACKOFF_MAX_S, Process, seen
from edl.core.job.gang_start import has_too_few_places
from edl.core.job.placement import Placement
from edl.core.records import Job, JobState, Member, Reclaim, RingMember
from edl.core.snapshot import Snapshot


@dataclass(frozen=True)
class SupervisorLimits:
    """The limits of a launcher: times, in seconds, and two numbers (`stuck_steps`, `restarts`)."""

    start_timeout_s: float = 120.0  # the time for a script to call `edl.init()`
    # the longest pause before another start in a slot whose workers die
    backoff_max_s: float = BACKOFF_MAX_S
    # a worker without a session that does not answer for this long is frozen
    frozen_s: float = 10.0
    # a worker whose process is suspended (SIGSTOP) for this long is ended, if others wait for it;
    # 0: it is not
    suspended_s: float = 1.0
    # how long the slot of a worker that left stays empty before another worker is started in it
    settle_s: float = 1.0
    kill_s: float = 5.0  # the time from SIGTERM to SIGKILL, for a process that is ended
    # the time for the exit handlers of libraries, once a script has ended
    exit_timeout_s: float = 30.0
    exit_s: float = 2.0  # the time for a process to be gone once its exit handlers have ended, too
    # the time for a process to be gone once the leader has proof of its end, such as a closed port
    gone_s: float = 10.0
    stop_s: float = 30.0  # the time for a ring to end after `edl stop`
    # the same for a ring that completes no step; or the time of `stuck_steps` usual steps, if that
    # is longer
    stuck_s: float = 5.0
    stuck_steps: int = 5  # the number of usual steps in that limit
    # the time for a ring without a leader to end after `edl stop`; longer than an election after an
    # expired session
    leaderless_s: float = 10.0
    # the time for what a script does after its training: evaluate, save, upload
    finish_s: float = 600.0
    # how often a job may lose all its workers with the same newest checkpoint; once more, and it
    # fails
    restarts: int = 3
    # how much longer than `start_timeout_s` the hosts of a job that has not begun are waited for:
    # the time in which a host whose agent has died gets another one; see `hosts_limit_s`
    gather_s: float = 30.0
    # the time for a running worker that lost its ZooKeeper session, and never was in a ring, to
    # open another
    absent_s: float = 20.0
    # the same for ring workers of other launchers, when all workers of this one have died
    lost_s: float = 10.0
    # After the death of a worker, for the others to repair their ring and to train their next step
    # before its replacement, which is forked at once, takes a part of the same processors.
    repair_s: float = 0.13
    poll_s: float = 0.2  # the longest time between two checks of the processes
    # the longest time between two readings of ZooKeeper; a change is read at once
    read_s: float = 1.0
    # how long a launcher without workers waits for ZooKeeper, or for the agent that told the
    # workers to end; then it ends
    away_s: float = 120.0
    killed_s: float = 10.0  # the time for killed processes to be gone

    @property
    def hosts_limit_s(self) -> float:
        """For how many seconds a job that has not begun waits for hosts before it has FAILED."""
        # It is at most 1.5 * `start_timeout_s`, less than the 2 * `start_timeout_s` after which
        # workers give up waiting for the first ring, so that the job ends with the reason.
        return self.start_timeout_s + min(self.gather_s, self.start_timeout_s / 2)

    def stop_limit_s(self, job: Job) -> float:
        """Return for how many seconds after `edl stop` the workers of `job` may go on."""
        if job.end_within_s:
            return job.end_within_s
        return self.stop_s + (job.spec.settings.save_timeout_s if job.checkpoint else 0.0)


@dataclass(frozen=True)
class RingDeath:
    """The death of all workers of a ring, as one launcher has seen it."""

    generation: int  # the number of the ring's generation
    saved_step: int  # of the newest checkpoint at that time
    at: float  # when the death was seen, by the launcher's clock, in seconds


@dataclass(frozen=True)
class SupervisorState:
    """A launcher's own state, which is not in ZooKeeper, such as its processes and limits."""

    host: str  # the host of the launcher
    token: str  # the text with which the `attempt_id` of each process of this launcher begins
    # the processes that it started, or took over from an earlier launcher, in order of their starts
    processes: tuple[Process, ...] = ()
    limits: SupervisorLimits = SupervisorLimits()  # the time limits
    script: str = "the script"  # the name of the script, for messages
    # whether this launcher has started the job; else it only takes part in the job
    is_submitter: bool = False
    state: JobState = JobState.RUNNING
    state_since: float = 0.0  # since when the job has that state
    # since when the job is known to be preempted; None: it is not
    preempted_since: float | None = None
    # the pair (number of the newest generation, last step) that the records had last; (-1, -1):
    # none was read
    step: tuple[int, int] = (-1, -1)
    stepped: float = 0.0  # when that pair was last seen to change
    ring_deaths: tuple[RingDeath, ...] = ()  # the known deaths of rings, in order of time
    # the numbers of the workers whose end any launcher has logged
    ended: frozenset[int] = frozenset()
    # the numbers of the workers that are not in ZooKeeper but answer on their ports
    answering: frozenset[int] = frozenset()
    # the numbers of the workers of the ring that answer on their ports, while a worker of this
    # launcher is suspended for too long
    waiting: frozenset[int] = frozenset()
    overdue: bool = False  # whether the time to give back borrowed slots of this host has passed
    # for each open demand to give slots back, the time since this launcher first saw it
    reclaims_s: Mapping[Reclaim, float] = field(default_factory=dict)
    # since when a job that has not begun has had too few places on its hosts to begin; None: it has
    # enough, or has begun
    too_few_since: float | None = None

    @property
    def living(self) -> tuple[Process, ...]:
        """The processes of the launcher that still run, in the order of their starts."""
        return tuple(p for p in self.processes if p.alive)

    def process(self, attempt_id: str) -> Process:
        """Return the process whose start has the token `attempt_id`."""
        return next(p for p in self.processes if p.attempt_id == attempt_id)

    def having(self, process: Process) -> Self:
        """Return a copy of this state with `process` in place of the one with its `attempt_id`."""
        newer = (process if p.attempt_id == process.attempt_id else p for p in self.processes)
        return replace(self, processes=tuple(newer))


State = TypeVar("State", bound=SupervisorState)


@dataclass(frozen=True)
class Start:
    """An order to the launcher to start one worker process."""

    slot: int  # the number of the slot on its host
    failures: int  # the number of failures in a row in this slot before this start
    reason: str  # why, for the log
    # whether the last worker of the slot was in a ring and ended with an error, so that the other
    # workers may be about to repair their ring
    replaces: bool = False
    # the number of the device that the worker gets; None: it gets none, because the job's devices
    # on this host are not limited
    device: int | None = None
    # the environment variables by which the worker learns its device
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class EndProcess:
    """An order to the launcher to end a process."""

    attempt_id: str  # the token of the start of that process
    kill: bool  # whether to send SIGKILL to its whole process group; if False it is sent SIGTERM
    reason: str  # why, for the log


@dataclass(frozen=True)
class DisableSlot:
    """An order to the launcher to start no worker in a slot any more, after the end of one there"""

    attempt_id: str  # the token of the start of the process that has ended
    slot: int  # the number of the slot
    desired: Placement  # the number of workers that are wanted on each host without the slot
    reason: str  # why, in a sentence


@dataclass(frozen=True)
class JobOutcome:
    """The end of a job as a launcher has to record it."""

    state: JobState  # the state in which the job ends: FINISHED, FAILED or STOPPED
    reason: str  # why, in a sentence
    exit_code: int = 0  # the exit code that `edl run` then has


@dataclass(frozen=True)
class SupervisorDecision:
    """A launcher's decision about its next actions, with the reason. The launcher carries it out"""

    reason: str  # why these actions, or why none, in a sentence
    starts: tuple[Start, ...] = ()  # the workers to start, each with its slot and the reason
    # the worker processes to signal, each with the signal and the reason
    endings: tuple[EndProcess, ...] = ()
    outcome: JobOutcome | None = None  # the end of the job to record; None: the job goes on
    warnings: tuple[str, ...] = ()  # texts to show to the user
    disable_slot: DisableSlot | None = None
    exit_code: int | None = None  # the code with which the launcher ends; None: it goes on


def observe(processes: Iterable[Process], snapshot: Snapshot, now: float) -> tuple[Process, ...]:
    """Return copies of `processes`, updated with the records of their workers in ZooKeeper."""
    return tuple(seen(process, snapshot, now) for process in processes)


def relevant(processes: Sequence[Process], snapshot: Snapshot) -> tuple[Process, ...]:
    """Return those of `processes` that the launcher still needs for a decision, in their order."""
    ring, reading = snapshot.state_owners, snapshot.status.progress_sample
    trained_in = reading.generation if reading is not None else 0
    last = {p.slot: p.attempt_id for p in sorted(processes, key=lambda p: p.started)}

    def matters(p: Process) -> bool:
        failed_last = p.failed and p.seated and p.generation >= trained_in
        return p.alive or last[p.slot] == p.attempt_id or p.worker in ring or failed_last

    return tuple(p for p in processes if matters(p))


def noted(own: State, snapshot: Snapshot, now: float) -> State:
    """Return a copy of `own` with what `snapshot` says: the job's state, its step, dead rings."""
    # Where a state or a step is new, `now` becomes the time since when it holds.
    generation = snapshot.generation.number if snapshot.generation else 0
    step = (generation, snapshot.status.step)
    if step != own.step:
        own = replace(own, step=step, stepped=now)
    if snapshot.job.state is not own.state:
        own = replace(own, state=snapshot.job.state, state_since=now)
    if snapshot.job.end_within_s and own.preempted_since is None:
        own = replace(own, preempted_since=now)
    limits = replace(own.limits, exit_timeout_s=snapshot.job.spec.settings.exit_timeout_s)
    since = now if own.too_few_since is None else own.too_few_since
    too_few = since if has_too_few_places(snapshot) else None
    processes = relevant(own.processes, snapshot)
    own = replace(own, processes=processes, limits=limits, too_few_since=too_few)
    return replace(own, ring_deaths=ring_deaths(own, snapshot, now))


def without_zookeeper(own: State) -> State:
    """A copy of a launcher's state without the facts that an outage of ZooKeeper makes void"""
    # These are the times since when workers have had no session, the time since when a job that has
    # not begun has had too few places on its hosts, and the death of the newest generation's ring.
    deaths = own.ring_deaths
    if deaths and deaths[-1].generation == own.step[0]:
        deaths = deaths[:-1]
    processes = tuple(replace(p, no_session_since=None) for p in own.processes)
    return replace(own, processes=processes, ring_deaths=deaths, too_few_since=None)


def ring_deaths(own: SupervisorState, snapshot: Snapshot, now: float) -> tuple[RingDeath, ...]:
    """Return the known deaths of rings, with the present ring's if all its workers are dead."""
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
    """Return this launcher's processes of the newest generation if no worker has the job's state"""
    members = snapshot.generation.worker_ids if snapshot.generation else ()
    left = {p.worker for p in own.living} | {m.id for m in foreign(snapshot, own)} | own.answering
    return (
        ()
        if left & snapshot.state_owners
        else tuple(p for p in own.processes if p.worker in members)
    )


def members_to_ask(snapshot: Snapshot, own: SupervisorState) -> tuple[RingMember, ...]:
    """Return the workers of other launchers that this launcher should ask whether they live."""
    generation, silent = snapshot.generation, replace(own, answering=frozenset())
    if generation is None or snapshot.job.state.over or not dead_ring(snapshot, silent):
        return ()
    dead = {p.worker for p in own.processes} | own.ended | snapshot.evicted.keys()
    members = {member.id: member for member in (*snapshot.ring, *generation.members)}
    return tuple(member for member in members.values() if member.id not in dead)


def foreign(snapshot: Snapshot, own: SupervisorState) -> list[Member]:
    """Return the records of the job's workers that this launcher neither started nor took over."""
    ours = {p.attempt_id for p in own.processes}
    return [
        m
        for m in snapshot.members
        if not m.attempt_id.startswith(own.token) and m.attempt_id not in ours
    ]
