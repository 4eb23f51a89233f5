"""Who is in the ring next, and why: one pure function of what ZooKeeper says.

The leader calls :func:`decide` whenever a fact changes. Its guards, in order; the first that
applies decides:

1. A stopping job gets a generation without seats: everybody leaves after the same step.
2. A job without a ring starts with ``np`` ready workers, or with ``min_np`` after a time limit.
   So does a job whose last ring is proven dead to the last worker.
3. A broken ring: all its members report or are dead, then the survivors go on. Newcomers wait,
   for the survivors are in the middle of a step. Until a generation is adopted, the ring is the
   one before it, with those who were to leave.
4. A generation that was announced is adopted by all its members before the next one. Only the
   proven death of one of its newcomers replaces it earlier: they hold no state, so nothing is
   lost. Leavers whose replacement died stay. At a start and after a break there is no ring to go
   on meanwhile: then the others fail to build theirs, and report it.
5. Workers that are asked to leave, that the plan no longer wants, or that are ready, change
   places in one switch. Newcomers that come up together are waited for, briefly; those that
   take the places of others until the last of them is ready, for meanwhile the ring lacks nobody
   (a migration of several workers is one switch). Nobody is dropped for being absent from
   ZooKeeper: either it comes back, or the ring breaks. A newcomer gets a seat only while it
   answers, and has taken note of the generation before: so one that is stuck spoils one switch at
   most, and is given up when it does not come round.

In a job that horovodrun started, its driver says which slots of a host are used: those below the
number in the plan. There the plan is never lowered from here, a worker in a slot beyond it leaves,
and the place of one that was asked to leave is filled again.

Whatever is decided: a generation's number grows by one, old members keep their relative rank
order, newcomers follow by id (those of a start host by host), nobody is both in and out, and the
ring never shrinks below what the plan and ``min_np`` ask for by our own decision. A generation with
newcomers keeps an old member to send them the state; if all old ones are to go, one of them goes
with the next switch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from edl.core.facts import Generation, JobState, Member, Request, Seat, Snapshot, Stage


@dataclass(frozen=True)
class Limits:
    """Time limits of the leader's decisions, in seconds."""

    start_s: float  # for `np` workers to come up at the start of the job
    prepare_s: float  # for a newcomer, from its registration to ready
    gather_s: float  # how long ready newcomers wait for others that are preparing
    leave_grace_s: float  # how long a leaver that is needed waits for its replacement
    notice_s: float  # for a newcomer to take note of a generation that passed it by


@dataclass(frozen=True)
class Ages:
    """How long things have stood as they are, in seconds by the leader's own clock.

    A new leader starts to count afresh, so limits may stretch but never shrink.
    """

    leading_s: float = 0.0
    stage_s: Mapping[int, float] = field(default_factory=dict)  # worker -> time in its stage
    generation_s: float = 0.0  # since the present generation was first seen


@dataclass(frozen=True)
class Decision:
    """What the leader does now; all of it in one transaction. ``reason`` is always set."""

    reason: str
    generation: Generation | None = None
    plan: Mapping[str, int] | None = None
    evict: Mapping[int, str] = field(default_factory=dict)
    answers: tuple[Request, ...] = ()

    @property
    def acts(self) -> bool:
        return bool(self.generation or self.plan is not None or self.evict or self.answers)


def decide(
    now: Snapshot,
    term: int,
    ages: Ages,
    limits: Limits,
    dead: Mapping[int, str] = MappingProxyType({}),
    silent: frozenset[int] = frozenset(),
) -> Decision:
    """The leader's next act, or none, with the reason.

    Args:
        now: what ZooKeeper says.
        term: the leader's own term.
        dead: workers proven dead, whether or not their session still lives, with the proof.
        silent: workers whose port has not answered just now; that alone proves nothing.

    A dead worker that has a seat is given up at once: then every daemon cuts the ring that it is
    in, and nobody waits for it. Not so a leaver that has taken back its own node: it has left as
    agreed, and the others are about to close that ring anyway.
    """
    decision = _decide(now, term, ages, limits, frozenset(dead), silent)
    current = None if now.job.state.over else now.generation
    seated = {s.id for s in (*current.seats, *current.previous)} if current else set()
    agreed = set(current.left) - {member.id for member in now.members} if current else set()
    lost = {w: dead[w] for w in sorted(dead) if w in seated - agreed and w not in now.evicted}
    return replace(decision, evict={**decision.evict, **lost}) if lost else decision


def _decide(
    now: Snapshot,
    term: int,
    ages: Ages,
    limits: Limits,
    dead: frozenset[int],
    silent: frozenset[int],
) -> Decision:
    """The guards of the module's docstring."""
    alive = {m.id: m for m in now.members if m.id not in dead and m.id not in now.evicted}
    current = now.generation
    if now.job.state.over or (current is not None and not current.seats):
        return Decision("the job has ended")
    if now.job.state is JobState.STOPPING:
        why = now.job.reason or "no reason given"
        return _end(now, term, f"the job is asked to stop: {why}")
    if current is None:
        return _start(now, now.job.np, alive, term, ages, limits)
    ring = _ring(now, current)
    absent = [s.id for s in ring if not (s.id in alive or s.id in dead or s.id in now.evicted)]
    if not any(seat.id in alive for seat in ring):
        return _restart(now, current, ring, alive, absent, term, ages, limits)
    training = {w: m for w, m in alive.items() if m.stage is not Stage.FINISHED}
    if any(_broke(training.get(seat.id), current) for seat in ring):
        return _recover(current, ring, training, absent, term)
    if any(seat.id in alive and seat.id not in training for seat in ring):
        return Decision("the job has trained to its end")
    waiting = [s.id for s in current.seats if s.id in alive and not _adopted(alive[s.id], current)]
    lost = tuple(w for w in current.joined if w in dead or w in now.evicted)
    breaking = any(s.id not in (*alive, *absent, *lost) for s in ring)  # it will report
    if lost and current.previous and not breaking and not _switched(now, current):
        return _replace_newcomers(now, current, alive, lost, term)
    if waiting:
        return Decision(f"generation {current.number} waits for {_names(waiting)} to switch")
    missing = [seat.id for seat in current.seats if seat.id not in alive]
    if missing:
        return Decision(
            f"{_names(missing)} of generation {current.number} left ZooKeeper; "
            "no change until it comes back or the ring breaks"
        )
    return _change(now, current, alive, term, ages, limits, silent)


def _ring(now: Snapshot, current: Generation) -> tuple[Seat, ...]:
    """The ring that holds the job's state: the one before, until somebody has switched."""
    return current.seats if _switched(now, current) or not current.previous else current.previous


def _switched(now: Snapshot, current: Generation) -> bool:
    """Whether a member adopted ``current``: then the ring was built, with all its members."""
    return any(_adopted(m, current) for m in now.members if m.id in current.members)


def _end(now: Snapshot, term: int, reason: str) -> Decision:
    current = now.generation
    number, members = (current.number, current.members) if current else (0, ())
    return Decision(reason, Generation(number + 1, term, (), -1, (), members, reason))


def _start(
    now: Snapshot, wanted: int, alive: Mapping[int, Member], term: int, ages: Ages, limits: Limits
) -> Decision:
    ready = [m for m in alive.values() if m.stage is Stage.READY]
    count, job = len(ready), now.job
    if count < wanted and not (count >= job.min_np and ages.leading_s >= limits.start_s):
        stuck = sorted(m.id for m in alive.values() if _stuck(m, ages, limits))
        return Decision(
            f"{count} of {wanted} workers are ready to start",
            evict=dict.fromkeys(stuck, f"it was not ready after {limits.prepare_s:g} s"),
        )
    chosen = sorted(ready, key=lambda m: (m.host, m.slot, m.id))[: job.max_np]
    # Host by host, for a ring's neighbours send each other every gradient.
    first = {host: min(m.id for m in chosen if m.host == host) for host in {m.host for m in chosen}}
    chosen.sort(key=lambda m: (first[m.host], m.id))
    seats = tuple(_seat(m) for m in chosen)
    reason = f"the job starts with {len(seats)} of {wanted} workers"
    members = tuple(seat.id for seat in seats)
    return Decision(reason, Generation(1, term, seats, seats[0].id, members, (), reason))


def _restart(
    now: Snapshot,
    current: Generation,
    ring: Sequence[Seat],
    alive: Mapping[int, Member],
    absent: Sequence[int],
    term: int,
    ages: Ages,
    limits: Limits,
) -> Decision:
    """Nobody of the ring is left in ZooKeeper: start again, if they are proven dead."""
    if absent:
        return Decision(
            f"all of {_names([seat.id for seat in ring])} left ZooKeeper and {_names(absent)} "
            "may be training; no change until they come back or are proven dead"
        )
    wanted = max(now.job.min_np, min(now.planned, now.job.max_np))
    start = _start(now, wanted, alive, term, ages, limits)
    lost = f"all {len(ring)} workers of generation {current.number} died"
    if start.generation is None:
        return replace(start, reason=f"{lost}; {start.reason}")
    saved = now.job.saved_step
    kept = f"the checkpoint of step {saved} is left" if saved >= 0 else "their state is lost"
    reason = f"{lost}, {kept}; {start.generation.reason}"
    # A newcomer that had a seat may just have received the state: let it be the root.
    seated = [w for w in start.generation.members if w in current.members]
    generation = replace(
        start.generation,
        number=current.number + 1,
        sync_root=(seated or start.generation.members)[0],
        left=tuple(sorted(seat.id for seat in ring)),
        reason=reason,
    )
    return replace(start, reason=reason, generation=generation)


def _recover(
    current: Generation,
    ring: Sequence[Seat],
    training: Mapping[int, Member],
    absent: Sequence[int],
    term: int,
) -> Decision:
    """Close the roll-call of a broken ring once nobody is left to be heard.

    Newcomers of a generation that was never adopted are not waited for: they hold no state, and
    may not even know that the others tried to build its ring. Who is ``absent`` from ZooKeeper
    counts as dead, unless nobody else has the state.
    """
    silent = [
        s.id
        for s in ring
        if s.id in training
        and not _broke(training[s.id], current)
        and not (current.previous and training[s.id].generation == 0)
    ]
    if silent:
        return Decision(
            f"generation {current.number} is broken; {_names(silent)} did not report yet"
        )
    members = {seat.id for seat in ring}
    newcomers = [seat for seat in current.seats if seat.id not in members]
    survivors = [s for s in (*ring, *newcomers) if _broke(training.get(s.id), current)]
    steps = {s.id: b.step for s in survivors if (b := training[s.id].broken) is not None}
    gone = tuple(seat.id for seat in ring if seat.id not in steps)
    newest = max(steps.values())
    if newest < 0 and absent:
        return Decision(
            f"generation {current.number} is broken and only {_names(absent)} may hold the state; "
            "no change until they come back or are proven dead"
        )
    if newest < 0:
        root, behind = survivors[0].id, tuple(steps)
    else:
        root = next(seat.id for seat in survivors if steps[seat.id] == newest)
        behind = tuple(worker for worker, step in steps.items() if step < newest)
    lost = f"{_names(gone)} went" if gone else "nobody died"
    reason = (
        f"generation {current.number} broke and {lost}; {len(survivors)} of {len(ring)} "
        f"go on from step {newest} of w{root}"
    )
    return Decision(
        reason,
        Generation(current.number + 1, term, tuple(survivors), root, behind, gone, reason),
    )


def _replace_newcomers(
    now: Snapshot,
    current: Generation,
    alive: Mapping[int, Member],
    lost: tuple[int, ...],
    term: int,
) -> Decision:
    """The generation again, without the newcomers that died, and with leavers in their stead."""
    joined = tuple(worker for worker in current.joined if worker not in lost)
    old = [seat.id for seat in current.seats if seat.id not in current.joined]
    floor = min(len(current.previous), max(now.planned, now.job.min_np))
    short = min(len(lost), floor - len(old) - len(joined))
    leavers = [s.id for s in current.previous if s.id in current.left and s.id in alive]
    leavers.sort(key=lambda w: alive[w].stage is Stage.LEAVING)
    back = leavers[: max(0, short)]
    seats = (
        *(seat for seat in current.previous if seat.id in old or seat.id in back),
        *(seat for seat in current.seats if seat.id in joined),
    )
    reason = f"{_names(lost)} died before joining generation {current.number}"
    if back:
        reason += f"; {_names(back)} cannot leave yet"
    root = current.sync_root  # an old member
    left = tuple(worker for worker in current.left if worker not in back)
    return Decision(
        reason,
        Generation(
            current.number + 1, term, seats, root, joined, left, reason, previous=current.previous
        ),
    )


def _change(
    now: Snapshot,
    current: Generation,
    alive: Mapping[int, Member],
    term: int,
    ages: Ages,
    limits: Limits,
    silent: frozenset[int],
) -> Decision:
    """A planned change of a ring that runs."""
    active = current.seats
    newcomers = [
        m for m in alive.values() if m.generation == 0 and m.stage in (Stage.PREPARING, Stage.READY)
    ]
    plan, answers, drained = _requests(now, active)

    # Who was asked to leave. Each lowers the plan, unless it wants fewer on that host anyway, or
    # min_np then needs a replacement.
    leaving = [s.id for s in active if alive[s.id].stage is Stage.LEAVING and s.id not in drained]
    staying = Counter(seat.host for seat in active if seat.id not in drained)
    for host in (seat.host for seat in active if seat.id in leaving):
        surplus = staying[host] > plan.get(host, 0)
        if (
            not now.job.driver
            and not surplus
            and sum(plan.values()) > now.job.min_np
            and plan.get(host, 0) > 0
        ):
            plan[host] -= 1
        staying[host] -= 1
    if now.job.driver and len(leaving) == len(active) and not newcomers:
        return _end(now, term, "all workers were asked to leave, as when horovodrun ends")
    refilled = len(leaving) if now.job.driver else 0  # the slot is free when they have left
    leaving += drained

    # Who the plan no longer wants: the highest ranks of each host first, or whose slot is beyond.
    for host in sorted({seat.host for seat in active}):
        here = [s for s in active if s.host == host and s.id not in leaving]
        if now.job.driver:
            leaving += [s.id for s in here if s.slot >= plan.get(host, 0)]
        else:
            leaving += [s.id for s in here[plan.get(host, 0) :]]

    # Who comes in: per host as many as the plan lacks; the rest is not wanted any more.
    behind = {m.id for m in newcomers if m.known < current.number}
    misplaced = {m.id for m in newcomers if now.job.driver and m.slot >= plan.get(m.host, 0)}
    evict, joining, coming = _newcomers(
        [m for m in newcomers if m.id not in misplaced],
        active, leaving, plan, behind, silent, ages, limits,
    )  # fmt: skip
    evict |= dict.fromkeys(sorted(misplaced), "the driver of horovodrun has taken back its slot")
    mute = [w for w in coming if alive[w].stage is Stage.READY]
    absent = _absent(now, active, leaving, plan, [alive[w].host for w in (*joining, *coming)])

    def only(reason: str) -> Decision:
        """No switch now: the plan is lowered when those leave who lower it, and not before.

        Else they would lower it once more with each look. So an accepted drain stays open, too.
        """
        refused = tuple(answer for answer in answers if not answer.accepted)
        return Decision(reason, None, None, evict, refused)

    ready_s = max((ages.stage_s.get(w, 0.0) for w in joining), default=0.0)
    if joining and coming and ready_s < limits.gather_s:
        return only(f"{_names(joining)} are ready and wait for {_names(coming)}")
    room = now.job.max_np - (len(active) - len(leaving))
    joining = joining[: max(0, room)]
    floor = min(len(active), max(sum(plan.values()) - refilled, now.job.min_np))

    def needed() -> list[int]:
        """The last to be asked, who wait for their replacements, in one switch with them."""
        lacking = floor - (len(active) - len(leaving) + len(joining))
        patient = [
            w
            for w in leaving
            if alive[w].stage is not Stage.LEAVING
            or ages.stage_s.get(w, 0.0) < limits.leave_grace_s
        ]
        return patient[-lacking:] if lacking > 0 else []

    held = needed()
    rest = [*(f"w{worker}" for worker in coming), *absent]
    hurry = any(alive[seat.id].stage is Stage.LEAVING for seat in active)
    hurry |= len(active) < sum(plan.values()) or ready_s >= limits.prepare_s
    together = joining if held and rest and not hurry else []
    if together:
        joining = []
        held = needed()
    leaving = [w for w in leaving if w not in held]
    if together and not leaving:
        return only(f"{_names(together)} are ready and move together with {', '.join(rest)}")
    if not joining and not leaving:
        if held:
            return only(f"{_names(held)} leave when their replacements are ready")
        wanted = sum(plan.values())
        if mute:
            return only(f"{_names(mute)} do not answer; {len(active)} of {wanted} train")
        if coming:
            return only(f"{_names(coming)} are preparing; {len(active)} of {wanted} train")
        return only(f"{len(active)} workers train; {wanted} are wanted")
    stay = [seat for seat in active if seat.id not in leaving]
    if joining and not stay:
        # Somebody has to bring the state into the new ring; rather one that is not in a hurry.
        stay = sorted(active, key=lambda s: alive[s.id].stage is Stage.LEAVING)[:1]
        leaving.remove(stay[0].id)
        joining = joining[: max(1, now.job.max_np - 1)]
    seats = (*stay, *(_seat(alive[w]) for w in sorted(joining)))
    parts = []
    if joining:
        parts.append(f"{_names(sorted(joining))} joined")
    if leaving:
        parts.append(f"{_names(sorted(leaving))} left")
    wanted = sum(plan.values())
    reason = f"{' and '.join(parts)}: {len(active)} -> {len(seats)} workers, {wanted} wanted"
    generation = Generation(
        number=current.number + 1,
        term=term,
        seats=seats,
        sync_root=stay[0].id if stay else -1,
        joined=tuple(sorted(joining)),
        left=tuple(sorted(leaving)),
        reason=reason if seats else f"{reason}; the job ends",
        previous=active,
    )
    changed_plan = plan if plan != dict(now.plan) else None
    return Decision(generation.reason, generation, changed_plan, evict, answers)


def _requests(
    now: Snapshot, active: Sequence[Seat]
) -> tuple[dict[str, int], tuple[Request, ...], list[int]]:
    """Answer the open requests; each accepted drain lowers the plan of its host by one."""
    plan = dict(now.plan)
    answers: list[Request] = []
    drained: list[int] = []
    for request in now.requests:
        seat = next((seat for seat in active if seat.id == request.worker), None)
        if request.kind != "drain":
            accepted = False
            outcome = f"this leader does not know requests of kind {request.kind!r}"
        elif now.job.driver:
            accepted = False
            outcome = (
                f"cannot drain w{request.worker}: horovodrun would start a worker in its place; "
                "use `edl scale`"
            )
        elif seat is None or seat.id in drained:
            accepted, outcome = False, f"w{request.worker} is not training in this job"
        elif min(sum(plan.values()), len(active) - len(drained)) <= now.job.min_np:
            accepted = False
            outcome = (
                f"cannot drain w{seat.id}: {len(active) - len(drained)} workers train, "
                f"{sum(plan.values())} are wanted and min_np is {now.job.min_np}; scale out first"
            )
        else:
            accepted, outcome = True, f"w{seat.id} leaves with the next switch"
            drained.append(seat.id)
            plan[seat.host] = max(0, plan.get(seat.host, 0) - 1)
        answers.append(
            Request(request.kind, request.worker, request.number, True, accepted, outcome)
        )
    return plan, tuple(answers), drained


def _newcomers(
    newcomers: Sequence[Member],
    active: Sequence[Seat],
    leaving: Sequence[int],
    plan: Mapping[str, int],
    behind: Collection[int],
    silent: Collection[int],
    ages: Ages,
    limits: Limits,
) -> tuple[dict[int, str], list[int], list[int]]:
    """Sort newcomers into those given up, those that may join now and those still to come.

    Who is ``silent``, or ``behind`` with taking note of the present generation, may be stuck;
    who builds a ring with it would wait in vain.
    """
    evict: dict[int, str] = {}
    joining: list[int] = []
    coming: list[int] = []
    ready = {m.id for m in newcomers if m.stage is Stage.READY}
    able = ready.difference(behind, silent)
    for host in sorted({m.host for m in newcomers}):
        staying = sum(seat.host == host and seat.id not in leaving for seat in active)
        lacking = max(0, plan.get(host, 0) - staying)
        here = (m for m in newcomers if m.host == host)
        for member in sorted(here, key=lambda m: (m.id not in able, m.id)):
            if lacking == 0:
                wanted = plan.get(host, 0)
                evict[member.id] = f"host {host} is planned for {wanted} workers and has them"
                continue
            lacking -= 1
            if _stuck(member, ages, limits):
                evict[member.id] = f"it was not ready after {limits.prepare_s:g} s"
            elif member.id in ready.intersection(behind) and _asleep(member, ages, limits):
                evict[member.id] = (
                    f"it was ready and takes no note of what goes on for {limits.notice_s:g} s"
                )
            else:
                (joining if member.id in able else coming).append(member.id)
    return evict, joining, coming


def _absent(
    now: Snapshot,
    active: Sequence[Seat],
    leaving: Sequence[int],
    plan: Mapping[str, int],
    arrived: Sequence[str],
) -> list[str]:
    """Workers that agents are about to start, told by host. ``arrived``: hosts of newcomers."""
    here = Counter([*(seat.host for seat in active if seat.id not in leaving), *arrived])
    lacking = {host.name: plan.get(host.name, 0) - here[host.name] for host in now.hosts}
    return [f"{count} more of {host}" for host, count in sorted(lacking.items()) if count > 0]


def _seat(member: Member) -> Seat:
    return Seat(member.id, member.host, member.slot, member.address, member.port)


def _adopted(member: Member, generation: Generation) -> bool:
    return member.generation >= generation.number


def _broke(member: Member | None, current: Generation) -> bool:
    """Whether a member reports a broken ring and ``current`` was decided without that report."""
    if member is None or member.broken is None:
        return False
    if member.broken.generation >= current.number:
        return True
    return bool(current.previous) and 0 < member.generation <= member.broken.generation


def _stuck(member: Member, ages: Ages, limits: Limits) -> bool:
    """Whether a newcomer has used up its time to prepare."""
    age = ages.stage_s.get(member.id, 0.0)
    return member.stage is Stage.PREPARING and age >= limits.prepare_s


def _asleep(member: Member, ages: Ages, limits: Limits) -> bool:
    """Whether a newcomer that is ready has used up its time to take note of a generation."""
    return min(ages.generation_s, ages.stage_s.get(member.id, 0.0)) >= limits.notice_s


def _names(workers: Sequence[int]) -> str:
    return ", ".join(f"w{worker}" for worker in workers)
