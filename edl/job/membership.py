"""Decide which workers are in the ring next, and why: one pure function of what ZooKeeper says.

The leader calls :func:`decide` whenever a record in ZooKeeper changes, and at intervals. The first
rule that applies decides; the reasons stand at the guards of :func:`_decide` and of the functions
that it calls:

1. A job that is asked to stop gets a generation without members.
2. A job without a ring starts; so does a job whose ring is proven dead to the last worker.
3. A broken ring is repaired (:mod:`edl.job.membership`).
4. No further generation is decided until all members have entered the announced one, unless a
   newcomer of it is lost.
5. A ring that runs is changed as planned (:mod:`edl.job.resize`).

The size of a ring follows the number of :class:`~edl.records.Assigned` workers. Where the
launcher assigns by slot, as the driver of horovodrun does, no rule lowers that number: a worker in
a slot beyond it leaves, and a worker that was asked to leave is replaced.

Each decision obeys these rules: a generation's number grows by one, old members keep their relative
rank order, newcomers follow by id (at a start, host by host), no worker both joins and leaves, and
the ring never shrinks below what is wanted and ``min_np`` by a decision of the leader. A generation
with newcomers keeps an old member to send them the state; if all old members are to leave, that one
leaves with the next switch.
"""

from __future__ import annotations

import signal
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from edl.job.borrowing import returned, without_reclaimed
from edl.job.decision import (
    DesiredChange,
    Limits,
    MembershipDecision,
    end_generation,
    is_stuck,
    ring_member,
)
from edl.job.liveness import Ages
from edl.job.placement import Placement
from edl.job.resize import next_generation
from edl.job.ring_failure import broke, let_go
from edl.job.snapshot import GONE, Snapshot
from edl.records import Generation, Host, Job, JobState, Member, Request, RingMember, Stage
from edl.text import counted, names, verb, workers

# ------------------------------------------------------------
# Decide how a ring that broke is repaired: rule 3 of `membership`.
#
# The entry point is `repair`.
#
# The leader waits until each member of the ring has reported its last step, is dead, or is evicted.
# Then the survivors go on from the state of one that has made the most progress: by steps, then by
# exchanges between steps, then by leaves (all have left an epoch with a batch in hand). No newcomer
# joins in the generation that repairs, for the survivors are in the middle of a step.


def repair(
    current: Generation,
    ring: Sequence[RingMember],
    training: Mapping[int, Member],
    no_session: Sequence[int],
    term: int,
    ages: Ages,
    limits: Limits,
) -> MembershipDecision:
    """Return the decision that repairs a broken ring, or one to wait for reports of its members."""
    unreported = [m.id for m in ring if m.id in training and not broke(training[m.id], current)]
    # A member that did not report may have made one step more than the others, and be the only
    # one with that state.
    if unreported or no_session:
        is_safe = has_state(training.values(), current)
        return _await_reports(current, unreported, no_session, is_safe, ages, limits)
    # Newcomers of a generation whose ring was never built hold no state, and may not even know
    # that the other members tried to build it: they are repaired with, but not waited for.
    old = {member.id for member in ring}
    newcomers = [member for member in current.members if member.id not in old]
    survivors = [m for m in (*ring, *newcomers) if broke(training.get(m.id), current)]
    progress = {m.id: b.progress for m in survivors if (b := training[m.id].broken) is not None}
    gone = tuple(member.id for member in ring if member.id not in progress)
    source, behind = _state_source(progress)
    newest, *_ = progress[source]
    lost = f"{names(gone)} went" if gone else "nobody died"
    go_on = f"go on from step {newest} of w{source}" if newest >= 0 else "begin"
    counted = f"{len(survivors)} of {len(survivors) + len(gone)}"
    reason = f"generation {current.number} broke and {lost}; {counted} {go_on}"
    at_epochs = any(b.at_epochs for m in survivors if (b := training[m.id].broken) is not None)
    if at_epochs and not current.at_epochs:
        reason += "; from now on newcomers join at the start of an epoch"
    return MembershipDecision(
        reason,
        Generation(
            current.number + 1,
            term,
            tuple(survivors),
            source,
            behind,
            gone,
            reason,
            at_epochs=at_epochs,
        ),
    )


def _await_reports(
    current: Generation,
    unreported: Sequence[int],
    no_session: Sequence[int],
    is_safe: bool,
    ages: Ages,
    limits: Limits,
) -> MembershipDecision:
    """Return the decision to wait for reports, or to evict who has not reported in time."""
    broken = f"generation {current.number} is broken"
    # The time limit evicts a member only where the state outlives it.
    if is_safe and ages.broken_s >= limits.report_s:
        why = f"{broken}, and it did not report within {limits.report_s:g} s"
        return MembershipDecision(broken, evict=dict.fromkeys((*unreported, *no_session), why))
    parts = [f"{names(unreported)} did not report yet"] if unreported else []
    if no_session:
        only = "" if is_safe or unreported else ", and may be the only one with the state"
        parts.append(
            f"{names(no_session)} left ZooKeeper{only}: no change until it reports or is proven "
            "dead"
        )
    return MembershipDecision(f"{broken}; {'; '.join(parts)}")


def _state_source(progress: Mapping[int, tuple[int, int, int]]) -> tuple[int, tuple[int, ...]]:
    """Choose the worker whose state a repaired ring goes on from, and who receives that state."""
    # In rank order, by worker id: (steps, exchanges, leaves); a step of -1: it has no state.
    most = max(progress.values())
    newest, *_ = most
    # Without any state the first survivor sends its initial one to all.
    if newest < 0:
        return next(iter(progress)), tuple(progress)
    source = next(worker for worker, made in progress.items() if made == most)
    return source, tuple(worker for worker, (step, *_) in progress.items() if step < newest)


def has_state(members: Iterable[Member], current: Generation) -> bool:
    """Return whether one of `members` reports its ring as broken and holds the job's state."""
    return any(m.broken is not None and m.broken.step >= 0 and broke(m, current) for m in members)


# ------------------------------------------------------------
# Decide when repairs of a job's rings are in vain: `RepairCount`.
#
# A repair helps if a worker has died, for the next ring lacks that worker. If the same workers
# break ring after ring at the same point of the training, a collective of the script fails in each
# of them, or the network between two of the workers is cut.


MOST_REPAIRS = 10  # in a row, of the same workers at the same point of the training

SCRIPT = "look for a collective of the script that fails in each ring, as in a reset callback"

NETWORK = "look for what keeps these workers from connecting to each other"


class RepairCount:
    """The repairs in a row that one worker has seen without a death and without progress."""

    def __init__(self, cut_limit_s: float) -> None:
        # So long rings that cannot be built are repaired, however often: a network may come back.
        self._cut_limit_s = cut_limit_s
        self._last: object = None
        self._count = 0
        self._since_s = 0.0  # when the first of these was

    def why_in_vain(
        self,
        workers: tuple[int, ...],
        progress: tuple[int, int, int],  # steps, exchanges and leaves
        is_built: bool,  # the ring that broke had been built
        why: str,
        now_s: float,
    ) -> str:
        """Count one more repair; return why the job is to end instead, or "" if it is to go on."""
        if (workers, progress) != self._last:
            self._last, self._count, self._since_s = (workers, progress), 0, now_s
        self._count += 1
        may_come_back = not is_built and now_s - self._since_s < self._cut_limit_s
        if self._count <= MOST_REPAIRS or may_come_back:
            return ""
        hint = SCRIPT if is_built else NETWORK
        return (
            f"the ring was repaired {self._count - 1} times after step {progress[0]} and broke "
            f"again each time, although no worker was lost: {why}; {hint}"
        )


# ------------------------------------------------------------
# Choose the host on which one worker is replaced: another host if it has room, else the same.
#
# The entry point is `replacement`; `taken_back` undoes its result.
#
# In both cases there is one switch: the leader keeps the worker until its replacement is ready
# (`resize`), which the agent of the chosen host starts meanwhile.


def replacement(
    now: Snapshot, worker: int, avoided: Collection[str]
) -> tuple[str, Placement] | None:
    """Return the host for the replacement of `worker`, and the workers to desire for it, if any."""
    members = now.generation.members if now.generation is not None else ()
    member = next((member for member in members if member.id == worker), None)
    if member is None or now.assigned.by_slot:
        return None
    desired = dict(now.desired.hosts)
    # A worker leaves this host anyway.
    if desired.get(member.host, 0) < sum(other.host == member.host for other in members):
        return None
    free = {host.name: _free(host, desired.get(host.name, 0)) for host in now.agents}
    # Hosts that are slow themselves are avoided; the worker's own one may be among them.
    open_ = [name for name in free if free[name] > 0 and name not in avoided]
    if not open_:
        return None
    target = min(open_, key=lambda name: (name == member.host, -free[name], name))
    if target != member.host:
        desired |= {
            member.host: desired.get(member.host, 0) - 1,
            target: desired.get(target, 0) + 1,
        }
    return target, desired


def taken_back(now: Snapshot, request: Request) -> Placement:
    """Return the desired workers by host after a replacement did not start and is given up."""
    desired, generation = dict(now.desired.hosts), now.generation
    members = generation.members if generation is not None else ()
    member = next((member for member in members if member.id == request.worker), None)
    if member is None or request.host == member.host or not desired.get(request.host, 0):
        return desired
    source, target = desired.get(member.host, 0) + 1, desired[request.host] - 1
    return {**desired, member.host: source, request.host: target}


def _free(host: Host, desired: int) -> int:
    return 0 if host.leaving else host.slots - len(host.disabled) - desired


# ------------------------------------------------------------
# Decide which process writes the records of a job again after ZooKeeper has lost them.
#
# Every worker has read the job's records before. A worker that knows the newest generation writes
# them: if an older generation were written, the next one would get a number that is already in use.
# The workers try in the order of their ranks (`begins_s`), if `may_write` and `is_newest` allow it.
# If no worker of the ring is left, a launcher writes, after `LAUNCHER_S` (10) seconds.


TURN_S, TURNS = 0.1, 50  # each of the first TURNS ranks begins TURN_S later than the one before

LAUNCHER_S = 10.0  # a launcher waits this long for the workers to write the job

PATIENCE_S = 60.0  # a process that cannot write the job takes it for removed after this time


def begins_s(own: int, generation: Generation | None) -> float:
    """Return how many seconds a worker waits for lower ranks to write the job's records first."""
    rank = None if generation is None else generation.rank_of(own)
    # A worker without a rank waits the longest.
    return TURN_S * min(TURNS, 0 if generation is None else TURNS if rank is None else rank)


def may_write(own: int, generation: Generation | None, evicted: Collection[int]) -> bool:
    """Return whether a worker may write the lost records of its job again."""
    return own not in evicted and (generation is None or generation.knows(own))


def is_newest(generation: Generation | None, known_to_others: Iterable[int]) -> bool:
    """Return whether no other worker that was asked knows a newer generation than this one does."""
    number = 0 if generation is None else generation.number
    return all(known <= number for known in known_to_others)


# ------------------------------------------------------------
# Define how a worker reports the end of its job, and decide how a preempted job has ended.
#
# A job is *preempted* if it was asked to save everything and to end within a bound: by `edl
# preempt`, or by SIGTERM to `edl run` with the setting `preempt_within_s`. The rules:
#
# 1. The bound counts from the moment at which a process of the job has read of it. The launchers
#    kill every worker that runs when it is over.
# 2. The workers save for a shorter time (`save_limit_s`), so that they end by themselves.
# 3. A save that is not complete within that time is dropped. The checkpoint before it stays
#    complete, and `halted` names it.
# 4. The job has ended in the state STOPPED, with exit code 96 if its last step was saved, else 97.


HALTED_EXIT = 96  # of a preempted job whose last step was saved, and of its workers

UNSAVED_EXIT = 97  # of a preempted job whose last steps were not saved

END_S = 3.0  # for the processes to end after the last save

END_SHARE = 0.25  # of the bound at most

LOOK_SHARE = 1 / 3  # of that time, to look up the newest checkpoint


@dataclass(frozen=True)
class JobEnd:
    """The end of a job, as a worker reports it for the job's record."""

    state: JobState
    reason: str
    exit_code: int = 0  # of `edl run`
    finished_in: int = 0  # the generation whose ring has trained to the end; 0: none has


@dataclass(frozen=True)
class Preemption:
    """The bound within which a worker of a preempted job has to save and end."""

    cause: str  # what preempts the job, such as "edl preempt --within 30s"
    within_s: float
    save_until_s: float  # when a checkpoint must be complete, by the worker's monotonic clock


def save_limit_s(within_s: float) -> float:
    """Return for how many seconds a job that is preempted within `within_s` seconds may save."""
    return within_s - min(END_S, END_SHARE * within_s)


def look_limit_s(within_s: float) -> float:
    """Return how long a worker whose last save failed may look up the newest checkpoint."""
    return LOOK_SHARE * (within_s - save_limit_s(within_s))


def why_tight(within_s: float, saved_in_s: float) -> str:
    """Return a sentence that says that a bound is probably too short; empty: it is not."""
    limit_s = save_limit_s(within_s)
    if saved_in_s <= limit_s:
        return ""
    return (
        f"the newest checkpoint took {saved_in_s:.1f} s to save, and a bound of {within_s:g} s "
        f"leaves {limit_s:g} s for the last one; if that is not complete in time, the job goes on "
        "from the newest one"
    )


def bound_of_signal(job: Job, number: signal.Signals) -> float:
    """Return the bound within which a signal to its launcher preempts `job`; 0.0: it stops it."""
    # Ctrl-C or the end of a terminal only stop a job, and so does any signal to a job that has no
    # checkpoint to go on from.
    within_s = job.spec.settings.preempt_within_s
    preempts = number not in (signal.SIGINT, signal.SIGHUP) and job.saved_step >= 0
    return within_s if preempts and within_s is not None else 0.0


def halted(cause: str, step: int, saved_step: int | None, directory: str, why: str = "") -> JobEnd:
    """Return the end of a job that was preempted."""
    # `saved_step` is of the newest complete checkpoint. -1: there is none. None: the directory
    # cannot be read, or has one of an earlier start.
    if saved_step is not None and saved_step >= max(0, step):
        reason = f"{cause}: step {saved_step} is saved in {directory}; `edl run --resume` goes on"
        return JobEnd(JobState.STOPPED, reason, HALTED_EXIT)
    why = why or f"no checkpoint of step {step} was written in time"
    if saved_step is None:
        reason = (
            f"{cause}: {why}; the newest intact checkpoint in {directory} is not known now; "
            "`edl run --resume` goes on from it"
        )
        return JobEnd(JobState.STOPPED, reason, UNSAVED_EXIT)
    if saved_step < 0:
        reason = f"{cause}: {why}, and there is no checkpoint before it; the job has to begin again"
        return JobEnd(JobState.STOPPED, reason, UNSAVED_EXIT)
    again = counted(step - saved_step, "step")
    reason = (
        f"{cause}: {why}; the newest complete checkpoint is of step {saved_step} in {directory}, "
        f"and `edl run --resume` goes on from it and trains {again} again"
    )
    return JobEnd(JobState.STOPPED, reason, UNSAVED_EXIT)


def decide(
    now: Snapshot,
    term: int,
    ages: Ages,
    limits: Limits,
    dead: Mapping[int, str] = MappingProxyType({}),  # the proof by worker id; a session may live
    silent: frozenset[int] = frozenset(),  # whose port did not answer just now; that proves nothing
    overdue: Mapping[int, str] = MappingProxyType({}),  # why to evict those in borrowed slots
) -> MembershipDecision:
    """Return what the leader does about the members of the job, with the reason."""
    # The state of the job must outlive the workers that are overdue.
    answering = {member.id for member in now.ring} - {*dead, *overdue, *now.evicted, *silent}
    if answering & {member.id for member in now.members}:
        dead = {**overdue, **dead}
    decision = _decide(now, term, ages, limits, frozenset(dead), silent)
    if decision.generation is not None:
        decision = replace(decision, generation=decision.generation.after(now.generation))
    # A dead member is evicted at once: then each daemon cuts the ring that it is in, and no worker
    # waits for it.
    lost = {worker: dead[worker] for worker in sorted(_dead_members(now, dead, silent))}
    if lost and now.generation is not None:
        # A leaver removes its record before it closes its port, perhaps after ``now`` was read.
        leavers = {member.id for member in now.members}.intersection(lost, now.generation.left)
        evict = {**decision.evict, **lost}
        decision = replace(decision, evict=evict, registered=frozenset(leavers))
    # Borrowed slots whose workers have left are given back when there is nothing else to decide.
    trains = now.generation is not None and not now.job.state.over
    done = returned(now, ages.reclaims_s) if trains and not decision.acts else ()
    if not done:
        return decision
    noted = DesiredChange(now.desired, without_reclaimed(now.desired, done))
    return replace(decision, change=noted, reclaimed=done)


def _dead_members(now: Snapshot, dead: Iterable[int], silent: frozenset[int]) -> set[int]:
    """Return the ids of the workers in `dead` that the leader evicts."""
    current = now.generation
    if current is None or now.job.state.over:
        return set()
    members = {member.id for member in (*current.members, *current.previous)}
    # A worker without a node has left as agreed, and the ring that it was in is about to be
    # closed. Its port refuses then, which is no reason to cut that ring.
    departed = {*current.left} - {member.id for member in now.members}
    # But before the switch, a leaver that is silent is frozen or cut off, and is waited for.
    if not now.switched:
        departed -= silent
    return (members - departed - now.evicted.keys()).intersection(dead)


def _decide(
    now: Snapshot,
    term: int,
    ages: Ages,
    limits: Limits,
    dead: frozenset[int],
    silent: frozenset[int],
) -> MembershipDecision:
    """Return the decision for a job that is to stop, starts or has a ring."""
    # A worker counts while it has a session and is neither proven dead nor evicted.
    gone = frozenset({*dead, *now.evicted, *let_go(now)})
    healthy = {member.id: member for member in now.members if member.id not in gone}
    current = now.generation
    # The members of a job that has ended leave by themselves.
    if now.job.state.over or (current is not None and not current.members):
        return MembershipDecision("the job has ended")
    # Rule 1, before all others: no worker is to join a job that stops. With a generation without
    # members, all workers leave after the same step.
    if now.job.state is JobState.STOPPING:
        why = now.job.reason or "no reason given"
        return end_generation(now, term, f"the job is asked to stop: {why}")
    # Rule 2: there is no ring yet, so no state to keep.
    if current is None:
        # A slot whose workers die as they start is not waited for: its worker may join later.
        failing = sum(len(host.failing) for host in now.hosts)
        return _start(now, now.job.spec.np - failing, healthy, term, ages, limits)
    return _decide_for_ring(now, current, healthy, gone, silent, term, ages, limits)


def _decide_for_ring(
    now: Snapshot,
    current: Generation,
    healthy: Mapping[int, Member],
    gone: frozenset[int],
    silent: frozenset[int],
    term: int,
    ages: Ages,
    limits: Limits,
) -> MembershipDecision:
    """Return the decision for a job that has a ring: restart, repair or change it, or wait."""
    ring = now.ring
    # A member that lost its session is not dead for that: it opens another one, and reports then.
    no_session = [m.id for m in ring if m.id not in healthy and m.id not in gone]
    # Rule 2, again: no worker of the ring is left in ZooKeeper, so none can go on from its state.
    if not any(member.id in healthy for member in ring):
        # A worker that has just switched into the new ring may hold the state without a session.
        no_session += sorted({*current.worker_ids} - {*healthy, *gone, *no_session})
        return _restart(now, current, ring, healthy, no_session, term, ages, limits)
    # Rule 3, before 4 and 5: a member reports that the ring broke, so no ring is left to change.
    training = {w: m for w, m in healthy.items() if m.stage is not Stage.FINISHED}
    if any(broke(training.get(member.id), current) for member in ring):
        return repair(current, ring, training, no_session, term, ages, limits)
    # After the last step the other members are about to end, too: there is nothing to train.
    if any(member.id in healthy and member.id not in training for member in ring):
        return MembershipDecision("the job has trained to its end")
    return _decide_for_running(now, current, healthy, gone, silent, term, ages, limits)


def _decide_for_running(
    now: Snapshot,
    current: Generation,
    healthy: Mapping[int, Member],
    gone: frozenset[int],
    silent: frozenset[int],
    term: int,
    ages: Ages,
    limits: Limits,
) -> MembershipDecision:
    """Return the decision for a ring that no member reports as broken: to change it, or to wait."""
    # Rule 4: newcomers that cannot join hold no state, so a generation without them may take the
    # place of this one, while no member has entered it and the ring before goes on. It does not
    # go on when it has lost a member, too: then it breaks, and its members report that. At a start
    # and after a break there is no ring before; the other members fail to build theirs, and report.
    lost = _lost_newcomers(current, healthy, gone)
    breaking = bool(gone.difference(lost).intersection(member.id for member in now.ring))
    if lost and current.previous and not breaking and not now.switched:
        return _replace_newcomers(now, current, healthy, lost, term)
    # Rule 4: newcomers that wait for the end of an epoch hold up no worker that is to leave.
    if current.waits_for_epoch and not breaking and not now.switched:
        before = replace(current, members=current.previous, joined=(), left=())
        old = {m.id: healthy[m.id] for m in current.previous if m.id in healthy}
        if len(old) == len(current.previous):
            leave = next_generation(now, before, old, term, ages, limits, silent)
            joining = names(current.joined)
            enough = now.job.sizes.enough(len(current.previous))  # else they pause, and it joins
            when = "at the next epoch's start" if enough else "now: too few are left to train"
            if leave.generation is not None:
                return leave
            aware = {  # of a further generation, which those who wait enter in place of this one
                w: replace(m, newest_generation=current.number) if w in current.joined else m
                for w, m in healthy.items()
            }
            more = next_generation(now, before, aware, term, ages, limits, silent)
            if more.generation is not None and {*more.generation.joined} > {*current.joined}:
                return more
            if sum(now.assigned.hosts.values()) < len(current.members) and more.evict:
                return replace(more, generation=None, change=None)  # it is wanted no more
            waits = f"{joining} {verb(len(current.joined), 'joins', 'join')} {when}"
            return MembershipDecision(waits, answers=leave.answers)
    # Rule 4: after a further generation, some members would enter this one and others the further.
    waiting = [
        m.id
        for m in current.members
        if m.id in healthy and not _has_entered(healthy[m.id], current)
    ]
    if waiting:
        return MembershipDecision(
            f"generation {current.number} waits for {names(waiting)} to switch"
        )
    # Rule 5 drops no member because its session ended: either it comes back, or the ring breaks.
    missing = [member.id for member in current.members if member.id not in healthy]
    if missing:
        return MembershipDecision(
            f"{names(missing)} of generation {current.number} left ZooKeeper; "
            "no change until it comes back or the ring breaks"
        )
    # Rule 5: all members train in this generation, so they can all switch to the next one.
    return next_generation(now, current, healthy, term, ages, limits, silent)


def _start(
    now: Snapshot,
    wanted: int,
    healthy: Mapping[int, Member],
    term: int,
    ages: Ages,
    limits: Limits,
    before: Sequence[str] = (),  # the hosts of a ring that has died, in the order of its ranks
) -> MembershipDecision:
    """Return the decision to start a ring with the ready workers, or to wait for more of them."""
    ready = [m for m in healthy.values() if m.stage is Stage.READY]
    count, job = len(ready), now.job
    size = job.sizes.below(count) if job.sizes.enough(count) else None
    # With fewer than wanted the ring starts only after a time limit, and never below min_np.
    if size is None or (count < wanted and ages.leading_s < limits.start_s):
        stuck = sorted(m.id for m in healthy.values() if is_stuck(m, ages, limits))
        return MembershipDecision(
            f"{count} of {wanted} workers are ready to start",
            evict=dict.fromkeys(stuck, f"it was not ready after {limits.prepare_s:g} s"),
        )
    chosen = sorted(ready, key=lambda m: (m.host, m.slot, m.id))[:size]
    # Ranks go host by host, for a ring's neighbours send each other every gradient. Hosts keep the
    # order that they had in a ring that has died.
    first = {host: min(m.id for m in chosen if m.host == host) for host in {m.host for m in chosen}}
    first |= {host: place - len(before) for place, host in reversed([*enumerate(before)])}
    chosen.sort(key=lambda m: (first[m.host], m.id))
    ring_members = tuple(ring_member(m) for m in chosen)
    reason = f"the job starts with {len(ring_members)} of {workers(wanted)}"
    members = tuple(member.id for member in ring_members)
    return MembershipDecision(
        reason, Generation(1, term, ring_members, ring_members[0].id, members, (), reason)
    )


def _restart(
    now: Snapshot,
    current: Generation,
    ring: Sequence[RingMember],
    healthy: Mapping[int, Member],
    no_session: Sequence[int],
    term: int,
    ages: Ages,
    limits: Limits,
) -> MembershipDecision:
    """Return the decision to start again, or to wait, when the whole ring has left ZooKeeper."""
    # A worker without a session may be training, with the newest state.
    if no_session:
        missing = sorted({*no_session, *(member.id for member in ring)})
        return MembershipDecision(
            f"all of {names(missing)} left ZooKeeper and {names(no_session)} may be training; no "
            "change until they come back or are proven dead"
        )
    who = f"all {len(ring)} workers" if len(ring) > 1 else f"w{ring[0].id}, the last worker"
    lost = f"{who} of generation {current.number} died"
    # The newcomers of a planned generation may hold the state, from its ring or from one that it
    # has replaced. A newcomer in a ring enters the generation, or reports that it broke; one in no
    # ring takes note that the generation will not come to be. A start would lose the state of one
    # that has done neither yet.
    joined = [healthy[worker] for worker in current.joined if worker in healthy]
    unheard = [member.id for member in joined if not _heard(member, current)]
    if unheard:
        late = ages.lost_s >= limits.report_s
        why = f"{lost}, and it did not say within {limits.report_s:g} s whether it holds the state"
        return MembershipDecision(
            f"{lost}; {names(unheard)} may hold the state: no change until it is known",
            evict=dict.fromkeys(unheard if late else (), why),
        )
    # Newcomers that do hold the state go on with it.
    if has_state(joined, current):
        return repair(current, ring, healthy, no_session, term, ages, limits)
    # Nothing is left of the state but a checkpoint, so this is a start like the first one.
    wanted, hostless = _wanted_after_death(now, ages, limits)
    hosts = [member.host for member in ring]
    start = _start(now, wanted, healthy, term, ages, limits, before=hosts)
    unawaited = f"; nobody waits for {', '.join(hostless)}, where no agent is" if hostless else ""
    if start.generation is None:
        return replace(start, reason=f"{lost}; {start.reason}{unawaited}")
    saved = now.job.saved_step
    kept = f"the checkpoint of step {saved} is left" if saved >= 0 else "their state is lost"
    reason = f"{lost}, {kept}; {start.generation.reason}{unawaited}"
    generation = replace(
        start.generation,
        number=current.number + 1,
        left=tuple(sorted(member.id for member in ring)),
        reason=reason,
    )
    return replace(start, reason=reason, generation=generation)


def _wanted_after_death(now: Snapshot, ages: Ages, limits: Limits) -> tuple[int, tuple[str, ...]]:
    """Return the size to start again with, and the hosts without an agent that nobody waits for."""
    agents = {host.name for host in now.hosts}
    hostless = tuple(host for host, n in now.assigned.hosts.items() if n and host not in agents)
    startable = sum(n for host, n in now.assigned.hosts.items() if host in agents)
    sizes = now.job.sizes
    # A host without an agent may have died with its workers; an agent that lost its session opens
    # another one within moments. Too few hosts are waited for: one may come back or join.
    if not hostless or ages.leading_s < limits.gather_s or not sizes.enough(startable):
        return sizes.fit(now.assigned.np), ()
    return sizes.fit(startable), hostless


def _lost_newcomers(
    current: Generation, healthy: Mapping[int, Member], gone: frozenset[int]
) -> tuple[int, ...]:
    """Return the ids of the newcomers of `current` that cannot join it."""
    dead = tuple(worker for worker in current.joined if worker in gone)
    # Nor can one whose script is in another call of Keras' `fit` than the ring. But one that has
    # only lost its session can.
    joined = (worker for worker in current.joined if worker in healthy)
    return dead + tuple(worker for worker in joined if healthy[worker].fits != current.fits)


def _replace_newcomers(
    now: Snapshot,
    current: Generation,
    healthy: Mapping[int, Member],
    lost: tuple[int, ...],
    term: int,
) -> MembershipDecision:
    """Return the decision that replaces a planned generation by one without its lost newcomers."""
    joined = tuple(worker for worker in current.joined if worker not in lost)
    old = [member.id for member in current.members if member.id not in current.joined]
    # Leavers stay in the places of lost newcomers, so that the ring is as large as is wanted.
    floor = min(len(current.previous), now.job.sizes.fit(now.assigned.np))
    short = min(len(lost), floor - len(old) - len(joined))
    staying = _departing(current, healthy)[: max(0, short)]
    kept = {*old, *staying}
    members = (
        *(member for member in current.previous if member.id in kept),
        *(member for member in current.members if member.id in joined),
    )
    went = "ended"  # by itself, too, if it differs from the others
    if all(worker in healthy for worker in lost):
        went = "went on to another fit"
    elif not any(now.evicted.get(worker, GONE).startswith(GONE) for worker in lost):
        went = verb(len(lost), "was evicted", "were evicted")
    reason = f"{names(lost)} {went} before joining generation {current.number}"
    if staying:
        reason += f"; {names(staying)} cannot leave yet"
    left = tuple(worker for worker in current.left if worker not in staying)
    return MembershipDecision(
        reason,
        Generation(
            current.number + 1,
            term,
            members,
            current.state_source,  # an old member
            joined,
            left,
            reason,
            previous=current.previous,
            fits=current.fits,
        ),
    )


def _departing(current: Generation, healthy: Mapping[int, Member]) -> list[int]:
    leavers = [m.id for m in current.previous if m.id in current.left and m.id in healthy]
    # Those that got SIGTERM are the last to be kept.
    return sorted(leavers, key=lambda worker: healthy[worker].stage is Stage.LEAVING)


def _heard(newcomer: Member, planned: Generation) -> bool:
    return broke(newcomer, planned) or newcomer.newest_generation >= planned.number


def _has_entered(member: Member, generation: Generation) -> bool:
    return member.generation >= generation.number
