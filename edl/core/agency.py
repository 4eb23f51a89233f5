"""What the agent of one host does next with its worker processes, and what has become of the job.

An agent keeps as many workers on its host as the plan says. Its rules, in order:

1. The job is over: its workers end by themselves within a time limit, then they are ended.
2. The job is stopping: the leader lets the ring end. Who is not in a ring, or has nobody to lead
   it, is ended at once; the rest after a time limit. When no worker is left the job is STOPPED.
3. A job that cannot begin has FAILED: every first start died, or ended without `edl.init()`.
4. A job that has nobody left has FAILED, or FINISHED when all of them exited with 0. Of the workers
   of other hosts that is certain only after a while without them. It goes on when they were killed
   and a checkpoint is there: rule 6 brings new workers, which continue from it. Not when the script
   itself ended with errors, or when this happens again without progress.
5. A worker that the leader has given up is ended, and so is one that was never in a ring and has
   left ZooKeeper for long: it is frozen, and no leader knows of it. So is one that has not joined
   yet when its host leaves the job. So is one of the ring that has left ZooKeeper and does not
   answer us, on its own host, while others could go on: it is frozen, and who leads them may be a
   newcomer that cannot tell this from a network that is cut.
6. What the plan lacks is started, each slot with a back-off that grows with its failures.

An agent never ends a worker to scale in: the leader takes it out of the ring and it exits with 0.
So a worker that leaves, or was taken out, no longer counts, and only a lasting lack of workers is
filled again: the plan is lowered in the same moment, and the two are not read in one.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from edl.core.facts import Generation, Job, JobState, Member, Snapshot, Stage

SETTLE_S = 1.0  # a place left by a worker stays free this long before somebody else gets it
KILL_S = 5.0  # from SIGTERM to SIGKILL
STOP_S = 30.0  # for a ring to end after `edl stop`
LEADERLESS_S = 10.0  # the same without a leader; longer than an election by session expiry
FINISH_S = 600.0  # for what a script does after its training: evaluate, save, upload
BACKOFF_MAX_S = 30.0
RESTARTS = 3  # how often a job may lose all its workers without a new checkpoint in between
UNSTARTED_EXIT = 126  # a shell's exit status for a command that it could not start
UNKNOWN_EXIT = -1000  # it ended, and only its parent, which is gone, could have learned how
ABSENT_S = 20.0  # a worker that runs opens a lost session again within seconds
LOST_S = 10.0  # the same for those of other hosts, when all of ours have died
FROZEN_S = 10.0  # for a worker that is not frozen to answer
TRAINED_S = 60.0  # a worker that lived this long in the ring has its earlier failures forgiven


@dataclass(frozen=True)
class Process:
    """One start of one worker process, as its agent has seen it. Times by the agent's clock."""

    slot: int
    launch: str
    started: float
    failures: int = 0  # failed starts in a row in this slot before this one
    worker: int | None = None  # id of its member, once it was seen
    ready: bool = False  # its member has been ready, or further
    seated: bool = False  # it has had a seat in a generation
    departing: float | None = None  # since when it leaves, has finished, or was taken out
    absent: float | None = None  # since when it has no node in ZooKeeper, which it had
    mute: float | None = None  # since when it has not answered its agent, which had reason to ask
    told: float | None = None  # since when it is being ended by the agent
    exit_code: int | None = None  # None: it runs; -9: killed by signal 9
    exited: float | None = None
    last_line: str = ""  # of its output, known when it has exited

    @property
    def alive(self) -> bool:
        return self.exit_code is None

    @property
    def failed(self) -> bool:
        """It ended with an error or without ever joining, and not because the agent ended it."""
        if self.exit_code is None or self.told is not None:
            return False
        return self.exit_code != 0 or self.worker is None

    @property
    def crashed(self) -> bool:
        """A signal killed it that was not the agent's, whether or not the leader has seen it, too.

        The leader may have given it up for that before the agent knew: then it has not ``failed``.
        """
        code = self.exit_code or 0
        ours = self.told is not None and self.told < (self.exited or 0.0)
        return code < 0 and code != UNKNOWN_EXIT and not ours

    def failed_late(self, finished: float) -> bool:
        """It ended with an error after the job had ``finished``, or was about to.

        Who died while it trained was replaced, or was not needed any more: that is no failure.
        """
        over = self.departing is not None or (self.exited or 0.0) >= finished
        return self.failed and bool(self.exit_code) and self.seated and over

    @property
    def name(self) -> str:
        return f"slot {self.slot}" if self.worker is None else f"w{self.worker}"

    @property
    def failures_now(self) -> int:
        """Failures in a row in this slot, this process included."""
        if not self.failed:
            return 0 if self.exit_code == 0 else self.failures
        trained = self.seated and (self.exited or 0.0) - self.started >= TRAINED_S
        return 1 if trained else self.failures + 1


@dataclass(frozen=True)
class Loss:
    """All workers of a ring have died. ``at``: by the agent's clock."""

    generation: int
    saved_step: int  # of the newest checkpoint at that time
    at: float


@dataclass(frozen=True)
class Own:
    """What an agent knows besides ZooKeeper."""

    host: str
    token: str  # every launch of this agent begins with it
    processes: tuple[Process, ...]  # started by it, or adopted from an earlier agent
    state_since: float  # since when the job has its present state
    start_timeout_s: float
    backoff_max_s: float = BACKOFF_MAX_S
    script: str = "the script"  # for messages
    draining: bool = False  # the host is about to leave the job
    losses: tuple[Loss, ...] = ()
    frozen_s: float = FROZEN_S


@dataclass(frozen=True)
class Start:
    """Start a worker in ``slot``."""

    slot: int
    failures: int
    reason: str


@dataclass(frozen=True)
class Ending:
    """End a process: SIGTERM, or with ``kill`` SIGKILL for its whole process group."""

    launch: str
    kill: bool
    reason: str


@dataclass(frozen=True)
class Outcome:
    """What has become of the job, as far as an agent has to say it."""

    state: JobState
    reason: str
    exit_code: int = 0


@dataclass(frozen=True)
class Decision:
    """What the agent does now. ``end``: there is nothing left for it to do."""

    reason: str
    starts: tuple[Start, ...] = ()
    endings: tuple[Ending, ...] = ()
    outcome: Outcome | None = None
    warnings: tuple[str, ...] = ()
    end: bool = False


def unstarted(process: Process, command: Sequence[str], error: OSError) -> Process:
    """A ``process`` that the system could not start: it has failed, as one that died at once.

    That is its host's trouble (memory, processes, a disk that is full), not the job's: it is tried
    again after the pause of its slot, and the others train on.
    """
    line = f"cannot start {' '.join(command)}: {error.strerror or error}"
    return replace(process, exit_code=UNSTARTED_EXIT, exited=process.started, last_line=line)


def observe(processes: Iterable[Process], snapshot: Snapshot, now: float) -> tuple[Process, ...]:
    """The processes with what ZooKeeper says of them; those that matter no more are dropped.

    An exited process matters while it is the last of its slot (for the back-off) or has a seat
    in the current generation (for the end of the job).
    """
    seats = snapshot.generation.members if snapshot.generation else ()
    by_launch = {m.launch: m for m in snapshot.members}
    seen = [_observe(p, by_launch.get(p.launch), snapshot, now) for p in processes]
    last = {p.slot: p.launch for p in sorted(seen, key=lambda p: p.started)}
    return tuple(p for p in seen if p.alive or last[p.slot] == p.launch or (p.worker in seats))


def record_loss(
    losses: tuple[Loss, ...],
    processes: Sequence[Process],
    snapshot: Snapshot,
    token: str,
    now: float,
) -> tuple[Loss, ...]:
    """``losses``, with that of the present generation; without it when somebody is back."""
    generation = snapshot.generation
    if generation is None:
        return losses
    known = bool(losses) and losses[-1].generation == generation.number
    lost = bool(_dead_ring(snapshot, processes, token))
    if lost == known:
        return losses
    if known:
        return losses[:-1]
    return (*losses, Loss(generation.number, snapshot.job.saved_step, now))


def decide(snapshot: Snapshot, own: Own, now: float) -> Decision:
    """The agent's next act, or none, with the reason. ``now``: the agent's monotonic clock."""
    state = snapshot.job.state
    if state.over:
        return _wind_down(snapshot, own, now)
    if state is JobState.STOPPING:
        return _stop(snapshot, own, now)
    outcome = _cannot_begin(snapshot, own, now) or _nobody_left(snapshot, own, now)
    if outcome:
        return Decision(outcome.reason, outcome=outcome)
    return _keep(snapshot, own, now)


def exit_status(code: int) -> int:
    """A shell's exit status for a process's exit code: 128 + n for signal n."""
    if code == UNKNOWN_EXIT:
        return 1
    return 128 - code if code < 0 else code


def how(code: int) -> str:
    """An exit code in words."""
    if code == UNKNOWN_EXIT:
        return "ended (an earlier agent had started it, so how is not known)"
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"exited with code {code}"


def backoff_s(failures: int, longest_s: float = BACKOFF_MAX_S) -> float:
    """How long a slot waits before its next start: 1, 2, 4, ... 30 s."""
    return 0.0 if failures < 1 else min(longest_s, 2.0 ** (min(failures, 10) - 1))


def _observe(process: Process, member: Member | None, snapshot: Snapshot, now: float) -> Process:
    generation = snapshot.generation
    worker = process.worker if member is None else member.id
    in_ring = generation is not None and worker in generation.members
    seated = process.seated or in_ring or (member is not None and member.generation > 0)
    stage = member.stage if member else None
    leaving = stage in (Stage.LEAVING, Stage.FINISHED) or (
        seated and generation is not None and not in_ring and stage is not Stage.READY
    )
    gone = member is None and worker is not None and process.alive
    since = process.departing if process.departing is not None else now
    told = process.told
    if told is None and not process.alive and worker in snapshot.evicted:
        told = now  # it has obeyed the leader
    code = process.exit_code
    if code == UNKNOWN_EXIT and (leaving or snapshot.job.state not in _ENDS_BADLY):
        code = 0  # it was about to end
    return replace(
        process,
        exit_code=code,
        worker=worker,
        seated=seated,
        ready=process.ready or seated or (stage is not None and stage is not Stage.PREPARING),
        departing=since if leaving else None,
        absent=(process.absent if process.absent is not None else now) if gone else None,
        told=told,
    )


_ENDS_BADLY = (JobState.RUNNING, JobState.FAILED)


def _wind_down(snapshot: Snapshot, own: Own, now: float) -> Decision:
    job = snapshot.job
    living = [p for p in own.processes if p.alive]
    if not living:
        return Decision(f"the job is over: {job.reason}", end=True)
    waited = now - own.state_since
    reason = f"job {job.name} is {job.state}"
    if job.state is JobState.FAILED:
        return Decision(reason, endings=_end(living, now, reason))
    limit = FINISH_S if job.state is JobState.FINISHED else STOP_S
    late = living if waited >= limit else [p for p in living if not p.seated]
    warnings: tuple[str, ...] = ()
    if job.state is JobState.FINISHED and waited >= STOP_S:
        names = ", ".join(p.name for p in living)
        warnings = (f"{names} still running {STOP_S:g} s after the job has finished",)
    return Decision(reason, endings=_end(late, now, reason), warnings=warnings)


def stop_limit(job: Job) -> float:
    """How long a ring may take to end after `edl stop`, in seconds; it may save before."""
    return STOP_S + (job.save_timeout_s if job.checkpoint else 0.0)


def _stop(snapshot: Snapshot, own: Own, now: float) -> Decision:
    living = [p for p in own.processes if p.alive]
    others = _others(snapshot, own)
    reason = snapshot.job.reason or "the job is asked to stop"
    if not living and not others:
        return Decision(reason, outcome=Outcome(JobState.STOPPED, reason))
    waited = now - own.state_since
    patience = stop_limit(snapshot.job)
    if snapshot.generation is None:
        ending, why = living, "the job stops before it began"
    elif waited >= patience:
        ending, why = living, f"the ring did not end within {patience:g} s"
    elif snapshot.leader is None and waited >= LEADERLESS_S:
        ending, why = living, f"the job stops and nobody has led it for {LEADERLESS_S:g} s"
    else:
        ending, why = [p for p in living if p.worker is None], "the job stops before it joined"
    return Decision(reason, endings=_end(ending, now, why))


def _cannot_begin(snapshot: Snapshot, own: Own, now: float) -> Outcome | None:
    """FAILED, when a job without any generation has no prospect of one."""
    job, processes = snapshot.job, own.processes
    if snapshot.generation is not None or not processes:
        return None
    mute = [p for p in processes if p.exit_code == 0 and p.worker is None and p.told is None]
    if mute:
        return Outcome(JobState.FAILED, f"{own.script} ended without calling edl.init()", 1)
    failed = [p for p in processes if p.failed]
    others = _others(snapshot, own)
    first_died = not any(p.ready for p in processes) and all(
        p.failed or p.failures for p in processes
    )
    if failed and first_died and not others:
        died = failed[0]
        code = died.exit_code or 1
        several = len(processes) > 1
        who = f"all {len(processes)} workers" if several else "the only worker"
        reason = f"{who} {_all_how(failed, several)} before joining the job; {_last(died)}"
        return Outcome(JobState.FAILED, reason, exit_status(code))
    usable = sum(p.alive and p.worker is not None for p in processes) + len(others)
    late = [p for p in processes if p.started + own.start_timeout_s <= now]
    if usable >= job.min_np or not late:
        return None
    limit = f"within {own.start_timeout_s:g} s (EDL_START_TIMEOUT_S)"
    silent = [p for p in late if p.alive and p.worker is None]
    if silent:
        names = ", ".join(p.name for p in silent)
        reason = f"{own.script} ({names}) did not call edl.init() {limit}"
        return Outcome(JobState.FAILED, reason, 1)
    if failed:
        died = failed[0]
        reason = (
            f"{usable} of at least {job.min_np} workers came up {limit}; {died.name} "
            f"{how(died.exit_code or 1)}; {_last(died)}"
        )
        return Outcome(JobState.FAILED, reason, exit_status(died.exit_code or 1))
    return None


def _nobody_left(snapshot: Snapshot, own: Own, now: float) -> Outcome | None:
    """FAILED or FINISHED, when every worker of the current generation has exited by itself."""
    generation = snapshot.generation
    if generation is None:
        return None
    if not generation.seats:
        return None if snapshot.members else Outcome(JobState.STOPPED, generation.reason)
    mine = _dead_ring(snapshot, own.processes, own.token)
    if not mine or not _others_are_dead(generation, mine, own.losses, now):
        return None
    failed = [p for p in mine if p.exit_code]
    if failed:
        hopeless = _hopeless(snapshot.job, own, failed, now)
        if hopeless is None:
            return None
        own_errors = [p for p in failed if p.told is None and (p.exit_code or 0) > 0]
        died = (own_errors or failed)[0]
        several = len(generation.seats) > 1
        who = "all workers" if several else "the last worker"
        reason = f"{who} {_all_how(failed, several)}{hopeless}; {_last(died)}"
        return Outcome(JobState.FAILED, reason, exit_status(died.exit_code or 1))
    if all(now - (p.exited or 0.0) >= SETTLE_S for p in mine):
        return Outcome(JobState.FINISHED, "all workers have exited with code 0")
    return None


def _dead_ring(snapshot: Snapshot, processes: Sequence[Process], token: str) -> tuple[Process, ...]:
    """This agent's processes of the current ring, when the whole ring has exited; else none."""
    members = snapshot.generation.members if snapshot.generation else ()
    mine = tuple(p for p in processes if p.worker in members)
    others = {m.id for m in _foreign(snapshot, processes, token)}
    return () if any(p.alive for p in mine) or others & set(members) else mine


def _others_are_dead(
    generation: Generation, mine: Sequence[Process], losses: Sequence[Loss], now: float
) -> bool:
    """Whether the workers of other hosts have been out of ZooKeeper for so long that they are dead.

    Of them nothing else is known here, and who only lost its session trains on, and is soon back.
    """
    if {p.worker for p in mine} >= {*generation.members}:
        return True
    lost = [loss.at for loss in losses if loss.generation == generation.number]
    return bool(lost) and now - lost[0] >= LOST_S


def _hopeless(job: Job, own: Own, failed: Sequence[Process], now: float) -> str | None:
    """Why a job whose workers are all dead cannot go on, as a clause; None: it can."""
    if all((p.exit_code or 0) > 0 for p in failed):
        return ""  # the script's own errors would come again
    if job.saved_step < 0:
        return "; there is no checkpoint to resume from (edl.checkpoint)"
    same = [loss for loss in own.losses if loss.saved_step == job.saved_step]
    if len(same) > RESTARTS:
        return f", {len(same)} times without progress after the checkpoint of step {job.saved_step}"
    limit = 2 * own.start_timeout_s
    if same and now - same[-1].at > limit:
        return f", and no new ones began within {limit:g} s"
    return None


def _keep(snapshot: Snapshot, own: Own, now: float) -> Decision:
    """Keep as many workers as the plan says."""
    wanted = snapshot.plan.get(own.host, 0)
    foreign = [m for m in _others(snapshot, own) if m.host == own.host]
    here = [m for m in foreign if m.stage not in (Stage.LEAVING, Stage.FINISHED)]
    living = [p for p in own.processes if p.alive]
    counted = sum(_counts(p, now) for p in own.processes) + len(here)
    evicted = snapshot.evicted
    given_up = {
        p: evicted[p.worker] for p in living if p.worker is not None and p.worker in evicted
    }
    given_up |= {p: f"it left ZooKeeper {ABSENT_S:g} s ago" for p in living if _vanished(p, now)}
    given_up |= {
        p: f"it is frozen: it left ZooKeeper and does not answer for {own.frozen_s:g} s"
        for p in living
        if is_frozen(p, snapshot, own.frozen_s, now)
    }
    if own.draining and wanted == 0:  # the leader does not know them, so it cannot give them up
        given_up |= {p: "its host leaves the job" for p in living if p.worker is None}
    endings = [ending for p, reason in given_up.items() for ending in _end([p], now, reason)]
    counted -= sum(_counts(p, now) for p in given_up)
    occupied = {p.slot for p in living} | {m.slot for m in foreign}
    slots = next((host.slots for host in snapshot.hosts if host.name == own.host), None)
    starts = _starts(wanted - counted, slots, occupied, own, now)
    warnings = tuple(
        f"{own.script} in {p.name} runs for {own.start_timeout_s:g} s and did not call edl.init()"
        for p in living
        if p.worker is None and p.told is None and p.started + own.start_timeout_s <= now
    )
    end = own.draining and wanted == 0 and not living
    reason = f"{counted} of {wanted} workers run on {own.host}"
    return Decision(reason, starts, tuple(endings), None, warnings, end)


def _counts(process: Process, now: float) -> bool:
    """Whether a process fills a place of the plan."""
    if process.told is not None or process.failed:
        return False
    if process.alive:
        return process.departing is None or now - process.departing < SETTLE_S
    return process.worker is not None and now - (process.exited or 0.0) < SETTLE_S


def _vanished(process: Process, now: float) -> bool:
    """Whether it was never in a ring, and has been absent from ZooKeeper for too long."""
    return not process.seated and process.absent is not None and now - process.absent >= ABSENT_S


def to_ask(processes: Iterable[Process], snapshot: Snapshot) -> tuple[Process, ...]:
    """Those that may be frozen: they have left ZooKeeper, or were given up, and have not ended."""
    return tuple(
        p for p in processes if p.alive and (p.absent is not None or p.worker in snapshot.evicted)
    )


def is_frozen(process: Process, snapshot: Snapshot, frozen_s: float, now: float) -> bool:
    """Whether it holds up a ring that could go on without it: somebody else leads."""
    if process.mute is None or process.absent is None or process.departing is not None:
        return False
    leads = snapshot.leader is not None and snapshot.leader.worker != process.worker
    long = now - max(process.mute, process.absent) >= frozen_s
    return process.alive and process.seated and leads and long


def _starts(
    lacking: int, slots: int | None, occupied: set[int], own: Own, now: float
) -> tuple[Start, ...]:
    """Fill the lowest free slots; a slot whose last start failed waits for its back-off.

    When none is free, the replacement of a worker that is about to leave shares its slot until
    then: the slot is the number of a device, and there are no more of them.
    """
    last = {p.slot: p for p in sorted(own.processes, key=lambda p: p.started)}
    order = [slot for slot in range(max(0, lacking) + len(occupied)) if slot not in occupied]
    if slots is not None:
        living = [p for p in own.processes if p.alive]
        staying = {p.slot for p in living if p.departing is None}
        order = [slot for slot in order if slot < slots]
        order += sorted({p.slot for p in living} - staying)
    starts = []
    for slot in order[: max(0, lacking)]:
        before = last.get(slot)
        if before is None:
            starts.append(Start(slot, 0, "the plan wants it"))
            continue
        if before.alive:
            starts.append(Start(slot, 0, f"{before.name} leaves and the plan wants a worker"))
            continue
        failures = before.failures_now
        pause = backoff_s(failures, own.backoff_max_s) if before.failed else 0.0
        if now >= (before.exited or 0.0) + pause:
            reason = f"{before.name} {how(before.exit_code or 0)} and the plan wants a worker"
            starts.append(Start(slot, failures, reason))
    return tuple(starts)


def _end(processes: Iterable[Process], now: float, reason: str) -> tuple[Ending, ...]:
    """SIGTERM once, SIGKILL when that did not help."""
    endings = []
    for process in processes:
        if process.told is None:
            endings.append(Ending(process.launch, False, reason))
        elif now - process.told >= KILL_S:
            endings.append(Ending(process.launch, True, f"{reason}; SIGTERM did not help"))
    return tuple(endings)


def _others(snapshot: Snapshot, own: Own) -> list[Member]:
    return _foreign(snapshot, own.processes, own.token)


def _foreign(snapshot: Snapshot, processes: Iterable[Process], token: str) -> list[Member]:
    """Members that this agent has neither started nor adopted."""
    adopted = {p.launch for p in processes}
    return [
        m for m in snapshot.members if not m.launch.startswith(token) and m.launch not in adopted
    ]


def _all_how(failed: Sequence[Process], several: bool) -> str:
    codes = sorted({p.exit_code or 0 for p in failed})
    told = " or ".join(how(code) for code in codes)
    return told.replace("was killed", "were killed") if several else told


def _last(process: Process) -> str:
    if not process.last_line:
        return f"{process.name} wrote nothing"
    return f"the last line of {process.name}: {process.last_line}"
