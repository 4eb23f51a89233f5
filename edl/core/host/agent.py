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
   newcomer that cannot tell this from a network that is cut. One whose script has ended, or that
   the leader knows is gone, ends by itself; it is killed when it does not.
6. What the plan lacks is started, each slot with a back-off that grows with its failures. A slot
   that fails more often than that is given up: the plan is lowered by its worker, and the job
   goes on with the others. Below ``min_np`` another free slot takes its place; without one the job
   has FAILED. Whoever raises the plan again lets such a slot begin anew, after all others.

An agent never ends a worker to scale in: the leader takes it out of the ring and it exits with 0.
So a worker that leaves, or was taken out, no longer counts, and only a lasting lack of workers is
filled again: the plan is lowered in the same moment, and the two are not read in one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from edl.core.host.process import (
    BACKOFF_MAX_S,
    EXIT_S,
    GONE_S,
    Process,
    exit_status,
    how,
    how_all,
    last_words,
    seen,
)
from edl.core.job.liveness import GONE
from edl.core.job.placement import without_slot
from edl.core.plural import verb, workers
from edl.core.records import Generation, Job, JobState, Member, Snapshot, Stage
from edl.errors import REFUSED_EXIT

SETTLE_S = 1.0  # a place left by a worker stays free this long before somebody else gets it
KILL_S = 5.0  # from SIGTERM to SIGKILL
STOP_S = 30.0  # for a ring to end after `edl stop`
STUCK_S = 5.0  # the same while it completes no step, and for five usual steps; nothing is lost then
STUCK_STEPS = 5
LEADERLESS_S = 10.0  # the same without a leader; longer than an election by session expiry
FINISH_S = 600.0  # for what a script does after its training: evaluate, save, upload
RESTARTS = 3  # how often a job may lose all its workers without a new checkpoint in between
ABSENT_S = 20.0  # a worker that runs opens a lost session again within seconds
LOST_S = 10.0  # the same for those of other hosts, when all of ours have died
FROZEN_S = 10.0  # for a worker that is not frozen to answer


@dataclass(frozen=True)
class RingDeath:
    """All workers of a ring have died. ``at``: by the agent's clock."""

    generation: int
    saved_step: int  # of the newest checkpoint at that time
    at: float


@dataclass(frozen=True)
class AgentState:
    """What an agent knows besides ZooKeeper."""

    host: str
    token: str  # every launch of this agent begins with it
    processes: tuple[Process, ...]  # started by it, or adopted from an earlier agent
    state_since: float  # since when the job has its present state
    start_timeout_s: float
    backoff_max_s: float = BACKOFF_MAX_S
    script: str = "the script"  # for messages
    draining: bool = False  # the host is about to leave the job
    ring_deaths: tuple[RingDeath, ...] = ()
    stepped: float = 0.0  # when the job's step was last seen to change
    ended: frozenset[int] = frozenset()  # workers of which some agent has told how they ended
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
class GiveUp:
    """Give up a slot after the end of the process ``launch``; the plan without it is ``plan``."""

    launch: str
    slot: int
    plan: Mapping[str, int]
    reason: str


@dataclass(frozen=True)
class Outcome:
    """What has become of the job, as far as an agent has to say it."""

    state: JobState
    reason: str
    exit_code: int = 0


@dataclass(frozen=True)
class AgentDecision:
    """What the agent does now. ``end``: there is nothing left for it to do."""

    reason: str
    starts: tuple[Start, ...] = ()
    endings: tuple[Ending, ...] = ()
    outcome: Outcome | None = None
    warnings: tuple[str, ...] = ()
    end: bool = False
    give_up: GiveUp | None = None


def observe(processes: Iterable[Process], snapshot: Snapshot, now: float) -> tuple[Process, ...]:
    """The processes with what ZooKeeper says of them."""
    return tuple(seen(process, snapshot, now) for process in processes)


def relevant(processes: Sequence[Process], snapshot: Snapshot) -> tuple[Process, ...]:
    """The processes without those that matter no more.

    An exited process matters while it is the last of its slot (for the back-off) or has a seat
    in the current generation (for the end of the job).
    """
    seats = snapshot.generation.members if snapshot.generation else ()
    last = {p.slot: p.launch for p in sorted(processes, key=lambda p: p.started)}
    return tuple(p for p in processes if p.alive or last[p.slot] == p.launch or p.worker in seats)


def record_ring_death(
    ring_deaths: tuple[RingDeath, ...],
    processes: Sequence[Process],
    snapshot: Snapshot,
    token: str,
    now: float,
) -> tuple[RingDeath, ...]:
    """``losses``, with that of the present generation; without it when somebody is back."""
    generation = snapshot.generation
    if generation is None:
        return ring_deaths
    known = bool(ring_deaths) and ring_deaths[-1].generation == generation.number
    lost = bool(_dead_ring(snapshot, processes, token))
    if lost == known:
        return ring_deaths
    if known:
        return ring_deaths[:-1]
    return (*ring_deaths, RingDeath(generation.number, snapshot.job.saved_step, now))


def decide(snapshot: Snapshot, own: AgentState, now: float) -> AgentDecision:
    """The agent's next act, or none, with the reason. ``now``: the agent's monotonic clock."""
    decision = _decide(snapshot, own, now)
    told = {ending.launch for ending in decision.endings}
    lingering = [p for p in own.processes if p.alive and p.launch not in told and lingers(p)]
    late = _end(lingering, now, "")
    return replace(decision, endings=decision.endings + late)


def _decide(snapshot: Snapshot, own: AgentState, now: float) -> AgentDecision:
    state = snapshot.job.state
    if state.over:
        return _wind_down(snapshot, own, now)
    if state is JobState.STOPPING:
        return _stop(snapshot, own, now)
    outcome = _cannot_begin(snapshot, own, now) or _nobody_left(snapshot, own, now)
    if outcome:
        return AgentDecision(outcome.reason, outcome=outcome)
    return _keep(snapshot, own, now)


def _wind_down(snapshot: Snapshot, own: AgentState, now: float) -> AgentDecision:
    job = snapshot.job
    living = [p for p in own.processes if p.alive]
    if not living:
        return AgentDecision(f"the job is over: {job.reason}", end=True)
    waited = now - own.state_since
    reason = f"job {job.name} is {job.state}"
    if job.state is JobState.FAILED:
        return AgentDecision(reason, endings=_end(living, now, reason))
    limit = FINISH_S if job.state is JobState.FINISHED else STOP_S
    late = living if waited >= limit else [p for p in living if not p.seated]
    warnings: tuple[str, ...] = ()
    if job.state is JobState.FINISHED and waited >= STOP_S:
        names = ", ".join(p.name for p in living)
        warnings = (f"{names} still running {STOP_S:g} s after the job has finished",)
    return AgentDecision(reason, endings=_end(late, now, reason), warnings=warnings)


def stop_limit(job: Job) -> float:
    """How long a ring may take to end after `edl stop`, in seconds; it may save before."""
    return STOP_S + (job.spec.settings.save_timeout_s if job.checkpoint else 0.0)


def _stop(snapshot: Snapshot, own: AgentState, now: float) -> AgentDecision:
    living = [p for p in own.processes if p.alive]
    others = _others(snapshot, own)
    reason = snapshot.job.reason or "the job is asked to stop"
    if not living and not others:
        return AgentDecision(reason, outcome=Outcome(JobState.STOPPED, reason))
    waited = now - own.state_since
    patience, quiet = stop_limit(snapshot.job), now - max(own.stepped, own.state_since)
    still = stuck(snapshot, living, quiet)
    if snapshot.generation is None:
        ending, why = living, "the job stops before it began"
    elif still:  # they know that the job stops: SIGTERM would tell them nothing else
        why = f"the job stops and no step has completed for {quiet:.0f} s"
        return AgentDecision(reason, endings=tuple(Ending(p.launch, True, why) for p in still))
    elif waited >= patience:
        ending, why = living, f"the ring did not end within {patience:g} s"
    elif snapshot.leader is None and waited >= LEADERLESS_S:
        ending, why = living, f"the job stops and nobody has led it for {LEADERLESS_S:g} s"
    else:
        ending, why = [p for p in living if p.worker is None], "the job stops before it joined"
    return AgentDecision(reason, endings=_end(ending, now, why))


def stuck(snapshot: Snapshot, living: Sequence[Process], quiet: float) -> list[Process]:
    """Who is still in a ring that completes no step, and neither leaves nor saves.

    Whoever evaluates completes no step either. So where something can be saved, as long is waited
    as for a ring that goes on.
    """
    usual = float(snapshot.status.get("median_step_s", 0.0))
    limit = min(STOP_S, max(STUCK_S, STUCK_STEPS * usual))
    if quiet < (STOP_S if snapshot.job.checkpoint else limit):
        return []
    stages = {m.launch: m.stage for m in snapshot.members}
    on_its_way = (Stage.LEAVING, Stage.FINISHED)
    return [p for p in living if stages.get(p.launch) not in on_its_way and not lingers(p)]


def _cannot_begin(snapshot: Snapshot, own: AgentState, now: float) -> Outcome | None:
    """FAILED, when a job without any generation has no prospect of one."""
    job, processes = snapshot.job, own.processes
    if snapshot.generation is not None or not processes:
        return None
    mute = [p for p in processes if p.exit_code == 0 and p.worker is None and p.told is None]
    if mute:
        return Outcome(JobState.FAILED, f"{own.script} ended without calling edl.init()", 1)
    refused = [p for p in processes if p.exit_code == REFUSED_EXIT and p.worker is None]
    if refused:
        return Outcome(JobState.FAILED, refused[0].last_line, REFUSED_EXIT)
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
        reason = f"{who} {how_all(failed, several)} before joining the job; {last_words(died)}"
        return Outcome(JobState.FAILED, reason, exit_status(code))
    usable = sum(p.alive and p.worker is not None for p in processes) + len(others)
    late = [p for p in processes if p.started + own.start_timeout_s <= now]
    if job.sizes.enough(usable) or not late:
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
            f"{usable} of at least {job.sizes.min_np} workers came up {limit}; {died.name} "
            f"{how(died.exit_code or 1)}; {last_words(died)}"
        )
        return Outcome(JobState.FAILED, reason, exit_status(died.exit_code or 1))
    return None


def _nobody_left(snapshot: Snapshot, own: AgentState, now: float) -> Outcome | None:
    """FAILED or FINISHED, when every worker of the current generation has exited by itself."""
    generation = snapshot.generation
    if generation is None:
        return None
    if not generation.seats:
        return None if snapshot.members else Outcome(JobState.STOPPED, generation.reason)
    mine = _dead_ring(snapshot, own.processes, own.token)
    if not mine or not _others_are_dead(snapshot, generation, mine, own, now):
        return None
    failed = [p for p in mine if p.failed] or [p for p in mine if p.exit_code]
    if failed:
        unrecoverable = _why_unrecoverable(snapshot.job, own, failed, now)
        if unrecoverable is None:
            return None
        own_errors = [p for p in failed if p.failed and (p.exit_code or 0) > 0]
        died = (own_errors or failed)[0]
        several = len(generation.seats) > 1
        who = "all workers" if several else "the last worker"
        reason = f"{who} {how_all(failed, several)}{unrecoverable}; {last_words(died)}"
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
    snapshot: Snapshot, generation: Generation, mine: Sequence[Process], own: AgentState, now: float
) -> bool:
    """Whether the workers of other hosts are dead, too.

    Their agents have told so, or the leader had proof of it. Or they have been out of ZooKeeper
    for so long: who only lost its session trains on, and is soon back.
    """
    gone = {worker for worker, reason in snapshot.evicted.items() if reason.startswith(GONE)}
    if {p.worker for p in mine} | own.ended | gone >= {*generation.members}:
        return True
    lost = [
        ring_death.at
        for ring_death in own.ring_deaths
        if ring_death.generation == generation.number
    ]
    return bool(lost) and now - lost[0] >= LOST_S


def _why_unrecoverable(
    job: Job, own: AgentState, failed: Sequence[Process], now: float
) -> str | None:
    """Why a job whose workers are all dead cannot go on, as a clause; None: it can."""
    if all((p.exit_code or 0) > 0 for p in failed):
        return ""  # the script's own errors would come again
    if job.saved_step < 0:
        return "; there is no checkpoint to resume from (edl.checkpoint)"
    same = [ring_death for ring_death in own.ring_deaths if ring_death.saved_step == job.saved_step]
    if len(same) > RESTARTS:
        return f", {len(same)} times without progress after the checkpoint of step {job.saved_step}"
    limit = 2 * own.start_timeout_s
    if same and now - same[-1].at > limit:
        return f", and no new ones began within {limit:g} s"
    return None


def _keep(snapshot: Snapshot, own: AgentState, now: float) -> AgentDecision:
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
    places = _places(wanted - counted, slots, occupied, own)
    limit = snapshot.job.spec.settings.max_restarts
    failing = next((p for _, p in places if p is not None and p.uses_up(limit)), None)
    if failing is not None:
        return _give_up(failing, snapshot, own)
    starts = _starts(places, own, now)
    warnings = tuple(
        f"{own.script} in {p.name} runs for {own.start_timeout_s:g} s and did not call edl.init()"
        for p in living
        if p.worker is None and p.told is None and p.started + own.start_timeout_s <= now
    )
    end = own.draining and wanted == 0 and not living
    reason = f"{counted} of {wanted} workers run on {own.host}"
    return AgentDecision(reason, starts, tuple(endings), None, warnings, end)


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


def _places(
    lacking: int, slots: int | None, occupied: set[int], own: AgentState
) -> list[tuple[int, Process | None]]:
    """Where ``lacking`` workers are to be started: slots, each with its last process.

    The lowest free slots, and after all others those that were given up. When none is free, the
    replacement of a worker that is about to leave shares its slot until then: the slot is the
    number of a device, and there are no more of them.
    """
    last = {p.slot: p for p in sorted(own.processes, key=lambda p: p.started)}
    used_up = {slot for slot, process in last.items() if process.used_up}
    count = max(0, lacking) + len(occupied | used_up)
    order = [slot for slot in range(count) if slot not in occupied]
    order.sort(key=lambda slot: slot in used_up)
    if slots is not None:
        living = [p for p in own.processes if p.alive]
        staying = {p.slot for p in living if p.departing is None}
        order = [slot for slot in order if slot < slots]
        order += sorted({p.slot for p in living} - staying)
    return [(slot, last.get(slot)) for slot in order[: max(0, lacking)]]


def _starts(
    places: Sequence[tuple[int, Process | None]], own: AgentState, now: float
) -> tuple[Start, ...]:
    """Fill the places; a slot whose last start failed waits for its back-off."""
    starts = []
    for slot, before in places:
        if before is None or before.used_up:
            again = " again" if before is not None else ""
            starts.append(Start(slot, 0, f"the plan wants it{again}"))
        elif before.alive:
            starts.append(Start(slot, 0, f"{before.name} leaves and the plan wants a worker"))
        elif now >= (before.exited or 0.0) + before.pause_s(own.backoff_max_s):
            reason = f"{before.name} {how(before.exit_code or 0)} and the plan wants a worker"
            starts.append(Start(slot, before.failures_now, reason))
    return tuple(starts)


def _give_up(process: Process, snapshot: Snapshot, own: AgentState) -> AgentDecision:
    """Go on without the slot of ``process``, or end the job that cannot."""
    job = snapshot.job
    what = (
        f"slot {process.slot} of host {own.host} failed {process.failures_now} times in a row "
        f"(--max-restarts is {job.spec.settings.max_restarts})"
    )
    last = f"{process.name} {how(process.exit_code or 0)}; {last_words(process)}"
    used_up = {p.slot for p in own.processes if p.used_up} | {process.slot}
    plan = without_slot(snapshot, own.host, used_up)
    if plan is None:
        reason = f"{what}, and without it fewer than {job.sizes.min_np} (--min-np) are left: {last}"
        code = exit_status(process.exit_code or 1)
        return AgentDecision(reason, outcome=Outcome(JobState.FAILED, reason, code))
    wanted = sum(plan.values())
    reason = f"{what} and is given up; {workers(wanted)} {verb(wanted)} wanted now; {last}"
    return AgentDecision(reason, give_up=GiveUp(process.launch, process.slot, plan, reason))


def lingers(process: Process) -> bool:
    """Whether it is about to end by itself."""
    return process.ended is not None or process.gone is not None


def _end(processes: Iterable[Process], now: float, reason: str) -> tuple[Ending, ...]:
    endings = (ending_of(process, now, reason) for process in processes)
    return tuple(ending for ending in endings if ending is not None)


def ending_of(
    process: Process, now: float, reason: str, patience_s: float = KILL_S
) -> Ending | None:
    """How to end a process now: SIGTERM once, SIGKILL when that did not help.

    Who ends by itself gets no SIGTERM: it would hide how it has ended.
    """
    if process.ended is not None:
        why = f"its script has ended, and the process has not within {EXIT_S:g} s"
        return Ending(process.launch, True, why) if now - process.ended >= EXIT_S else None
    if process.gone is not None:
        why = f"its port is closed, and the process has not ended within {GONE_S:g} s"
        return Ending(process.launch, True, why) if now - process.gone >= GONE_S else None
    if process.told is None:
        return Ending(process.launch, False, reason)
    if now - process.told >= patience_s:
        return Ending(process.launch, True, f"{reason}; SIGTERM did not help")
    return None


def _others(snapshot: Snapshot, own: AgentState) -> list[Member]:
    return _foreign(snapshot, own.processes, own.token)


def _foreign(snapshot: Snapshot, processes: Iterable[Process], token: str) -> list[Member]:
    """Members that this agent has neither started nor adopted."""
    adopted = {p.launch for p in processes}
    return [
        m for m in snapshot.members if not m.launch.startswith(token) and m.launch not in adopted
    ]
