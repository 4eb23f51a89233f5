"""A planned change of a ring that runs: who comes in and who goes, in one switch.

The steps, each a function below:

1. Who may leave, and why: whom a signal or a request asks to, and whom the plan no longer wants.
2. Who is ready: on each host as many newcomers as the plan lacks there; the others are given up.
3. The target: one size for the ring after the switch, and who stays for its sake.
4. The pairs: who joins and who leaves, or who they wait for. Newcomers wait for others that come
   up with them, briefly, or until the last one is ready when they take the places of others.

Its rules are those of :mod:`edl.core.job.membership`, rule 5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from edl.core.job.decision import Ages, Decision, Limits, end, is_stuck, seat_of
from edl.core.plural import names, verb, workers, workers_train
from edl.core.records import Generation, Member, Request, Seat, Snapshot, Stage


class Why(Enum):
    """Why a worker may leave. Those further down stay first when the ring needs them."""

    SIGNAL = "it was sent SIGTERM"
    DRAIN = "its drain was accepted"
    PLAN = "the plan does not want it where it is"


@dataclass(frozen=True)
class Leaver:
    """A worker that may leave.

    Attributes:
        share: how many workers fewer the plan wants on ``host`` once it has left.
        must: it goes now, whatever size that makes.
        refilled: the launcher starts another in its slot when it has left, and not before.
    """

    id: int
    host: str
    why: Why
    share: int = 0
    must: bool = False
    refilled: bool = False

    @property
    def moves(self) -> bool:
        """Somebody wants a worker in another place instead: it waits for that one."""
        return self.why is Why.PLAN or (self.why is Why.DRAIN and self.share == 0)


@dataclass(frozen=True)
class Target:
    """The ring after the switch: its ``size``, who joins, who leaves, who stays for now."""

    size: int
    joining: tuple[int, ...]
    leaving: tuple[Leaver, ...]
    held: tuple[Leaver, ...]


def change(
    now: Snapshot,
    current: Generation,
    alive: Mapping[int, Member],
    term: int,
    ages: Ages,
    limits: Limits,
    silent: frozenset[int],
) -> Decision:
    """The next generation of a ring whose members are all ``alive``; else why there is none now."""
    active = current.seats
    newcomers = [
        m for m in alive.values() if m.generation == 0 and m.stage in (Stage.PREPARING, Stage.READY)
    ]
    answers, leavers = _leavers(now, active, alive, ages, limits)
    signalled = sum(one.why is Why.SIGNAL for one in leavers)
    if now.job.driver and signalled == len(active) and not newcomers:
        return end(now, term, "all workers were asked to leave, as when horovodrun ends")
    plan = _without(now.plan, leavers)
    evict, ready, coming = _newcomers(
        newcomers, now, active, leavers, plan, current.number, silent, ages, limits
    )
    refused = tuple(answer for answer in answers if not answer.accepted)
    ready_s = max((ages.stage_s.get(w, 0.0) for w in ready), default=0.0)
    if ready and coming and ready_s < limits.gather_s:
        reason = f"{names(ready)} are ready and wait for {names(coming)}"
        return Decision(reason, None, None, evict, refused)

    target = _target(now, active, leavers, ready)
    # Who takes the places of others waits for the last one, unless somebody is in a hurry.
    absent = _absent(now, active, leavers, plan, [alive[w].host for w in (*ready, *coming)])
    rest = [*(f"w{worker}" for worker in coming), *absent]
    hurry = any(alive[seat.id].stage is Stage.LEAVING for seat in active)
    hurry |= len(active) < _attainable(now, active, plan) or ready_s >= limits.prepare_s
    together = list(target.joining) if target.held and rest and not hurry else []
    if together:
        target = _target(now, active, leavers, [])
    if not target.joining and not target.leaving:
        reason = _standstill(target, coming, alive, len(active), sum(plan.values()))
        if together:
            reason = f"{names(together)} are ready and move together with {', '.join(rest)}"
        return Decision(reason, None, None, evict, refused)
    # The plan is lowered when those leave who lower it, and not before: else they would lower it
    # once more with each look. So the drain of who is held stays open, too.
    held = {one.id for one in target.held}
    answers = tuple(one for one in answers if not (one.accepted and one.worker in held))
    plan = _without(now.plan, target.leaving)
    leaving = [one.id for one in target.leaving]
    new = _generation(current, alive, term, sum(plan.values()), target.joining, leaving)
    changed_plan = plan if plan != dict(now.plan) else None
    return Decision(new.reason, new, changed_plan, evict, answers)


# --- 1. who may leave, and why


def _leavers(
    now: Snapshot,
    active: Sequence[Seat],
    alive: Mapping[int, Member],
    ages: Ages,
    limits: Limits,
) -> tuple[tuple[Request, ...], tuple[Leaver, ...]]:
    """The answers to the open requests, and all who may leave: first who should go first."""
    by_slot = bool(now.job.driver)
    answers, drained = _drained(now, active)
    gone = {one.id for one in drained}
    plan = _without(now.plan, drained)
    asked = [s for s in active if alive[s.id].stage is Stage.LEAVING and s.id not in gone]
    shares = dict.fromkeys((s.id for s in asked), 0)
    if not by_slot:
        shares = _shares(now, plan, active, asked, gone)
    signalled = tuple(
        Leaver(
            *(s.id, s.host, Why.SIGNAL, shares[s.id]),
            must=_impatient(alive[s.id], ages, limits),
            refilled=by_slot,
        )
        for s in asked
    )
    leavers = (*signalled, *drained)
    plan = _without(plan, signalled)
    return answers, (*leavers, *_unwanted(active, {one.id for one in leavers}, plan, by_slot))


def _without(plan: Mapping[str, int], leavers: Collection[Leaver]) -> dict[str, int]:
    """The plan when they have left."""
    lowered = dict(plan)
    for one in leavers:
        if one.share:
            lowered[one.host] = lowered.get(one.host, 0) - one.share
    return lowered


def _drained(
    now: Snapshot, active: Sequence[Seat]
) -> tuple[tuple[Request, ...], tuple[Leaver, ...]]:
    """Answer the open requests; each accepted drain lowers the plan of its host by one.

    Not where nobody is wanted on that host anyway.
    """
    plan = dict(now.plan)
    answers: list[Request] = []
    drained: dict[int, Leaver] = {}
    for request in now.requests:
        seat = next((seat for seat in active if seat.id == request.worker), None)
        left = len(active) - len(drained)
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
        elif min(sum(plan.values()), left) <= now.job.min_np:
            accepted = False
            outcome = (
                f"cannot drain w{seat.id}: {workers_train(left)}, {sum(plan.values())} "
                f"{verb(sum(plan.values()))} wanted and min_np is {now.job.min_np}; "
                "scale out first"
            )
        else:
            accepted, outcome = True, f"w{seat.id} leaves with the next switch"
            share = min(1, plan.get(seat.host, 0))
            drained[seat.id] = Leaver(seat.id, seat.host, Why.DRAIN, share)
            plan[seat.host] = plan.get(seat.host, 0) - share
        answers.append(
            Request(request.kind, request.worker, request.number, True, accepted, outcome)
        )
    return tuple(answers), tuple(drained.values())


def _attainable(now: Snapshot, active: Sequence[Seat], plan: Mapping[str, int]) -> int:
    """How many workers the plan wants that are there, or that somebody can start.

    Nobody can on a host without an agent: perhaps it has died, and its share stays in the plan.
    """
    if now.job.driver:
        return sum(plan.values())
    agents, here = {host.name for host in now.hosts}, Counter(seat.host for seat in active)
    return sum(n if host in agents else min(n, here[host]) for host, n in plan.items())


def _shares(
    now: Snapshot,
    plan: Mapping[str, int],
    active: Sequence[Seat],
    asked: Sequence[Seat],
    drained: Collection[int],
) -> dict[int, int]:
    """By how much each who was ``asked`` to leave by a signal lowers the plan of its host.

    By one, unless the plan wants fewer on that host anyway, or min_np then needs a replacement.
    """
    lower, shares = dict(plan), dict[int, int]()
    staying = Counter(seat.host for seat in active if seat.id not in drained)
    for seat in asked:
        host = seat.host
        surplus = staying[host] > lower.get(host, 0)
        spare = _attainable(now, active, lower) > now.job.min_np
        shares[seat.id] = int(not surplus and spare and lower.get(host, 0) > 0)
        lower[host] = lower.get(host, 0) - shares[seat.id]
        staying[host] -= 1
    return shares


def _unwanted(
    active: Sequence[Seat], leaving: Collection[int], plan: Mapping[str, int], by_slot: bool
) -> tuple[Leaver, ...]:
    """Whom the plan no longer wants: the highest ranks of each host, or whose slot is beyond."""
    unwanted: list[Seat] = []
    for host in sorted({seat.host for seat in active}):
        here = [s for s in active if s.host == host and s.id not in leaving]
        wanted = plan.get(host, 0)
        unwanted += [s for s in here if s.slot >= wanted] if by_slot else here[wanted:]
    return tuple(Leaver(seat.id, seat.host, Why.PLAN) for seat in unwanted)


def _impatient(member: Member, ages: Ages, limits: Limits) -> bool:
    """Whether who was sent SIGTERM has waited for its replacement for as long as it can."""
    return ages.stage_s.get(member.id, 0.0) >= limits.leave_grace_s


# --- 2. who is ready


def _newcomers(
    newcomers: Sequence[Member],
    now: Snapshot,
    active: Sequence[Seat],
    leavers: Sequence[Leaver],
    plan: Mapping[str, int],
    generation: int,
    silent: Collection[int],
    ages: Ages,
    limits: Limits,
) -> tuple[dict[int, str], list[int], list[int]]:
    """Sort newcomers into those given up, those that may join now and those still to come.

    Who is ``silent``, or behind with taking note of the present ``generation``, may be stuck;
    who builds a ring with it would wait in vain.
    """
    behind = {m.id for m in newcomers if m.newest_generation < generation}
    misplaced = {m.id for m in newcomers if now.job.driver and m.slot >= plan.get(m.host, 0)}
    newcomers = [m for m in newcomers if m.id not in misplaced]
    evict = dict.fromkeys(sorted(misplaced), "the driver of horovodrun has taken back its slot")
    joining: list[int] = []
    coming: list[int] = []
    leaving = {one.id for one in leavers}
    ready = {m.id for m in newcomers if m.stage is Stage.READY}
    able = ready.difference(behind, silent)
    for host in sorted({m.host for m in newcomers}):
        staying = sum(seat.host == host and seat.id not in leaving for seat in active)
        lacking = max(0, plan.get(host, 0) - staying)
        here = (m for m in newcomers if m.host == host)
        for member in sorted(here, key=lambda m: (m.id not in able, m.id)):
            if lacking == 0:
                wanted = plan.get(host, 0)
                evict[member.id] = f"host {host} is planned for {workers(wanted)} and has them"
                continue
            lacking -= 1
            if is_stuck(member, ages, limits):
                evict[member.id] = f"it was not ready after {limits.prepare_s:g} s"
            elif member.id in ready.intersection(behind) and _asleep(member, ages, limits):
                evict[member.id] = (
                    f"it was ready and takes no note of what goes on for {limits.notice_s:g} s"
                )
            else:
                (joining if member.id in able else coming).append(member.id)
    return evict, joining, coming


def _asleep(member: Member, ages: Ages, limits: Limits) -> bool:
    """Whether a newcomer that is ready has used up its time to take note of a generation."""
    return min(ages.generation_s, ages.stage_s.get(member.id, 0.0)) >= limits.notice_s


# --- 3. the target, and who stays for its sake


def _target(
    now: Snapshot, active: Sequence[Seat], leavers: Sequence[Leaver], ready: Sequence[int]
) -> Target:
    """The size of the ring after the switch: that for which the fewest of ``leavers`` are held.

    It is judged by the plan as it is written with that switch: who is held lowers it no more.
    """
    order = _hold_order(active, leavers)
    # Somebody has to bring the state into a new ring; that one goes with the next switch.
    bringer = order[:1] if ready and len(leavers) == len(active) else []
    patient = [one for one in order if not one.must and one not in bringer]
    for count in range(len(patient) + 1):
        held = [*bringer, *patient[:count]]
        leaving = [one for one in leavers if one not in held]
        for joined in range(len(ready), -1, -1):
            size = len(active) - len(leaving) + joined
            fits = not joined or size <= now.job.max_np or (bringer and joined == 1)
            if fits and size >= _floor(now, active, leaving):
                return Target(size, tuple(ready[:joined]), tuple(leaving), tuple(held))
    leaving = [one for one in leavers if one.must and one not in bringer]
    joined = min(len(ready), len(leaving))
    size = len(active) - len(leaving) + joined
    return Target(size, tuple(ready[:joined]), tuple(leaving), (*bringer, *patient))


def _hold_order(active: Sequence[Seat], leavers: Sequence[Leaver]) -> list[Leaver]:
    """Who is held first: who moves, then who was drained, then who was sent SIGTERM.

    When all are to go, the first is one that is not in a hurry: it brings the state.
    """
    order = [one for one in leavers[::-1] if one.moves]
    order += [one for one in leavers[::-1] if not one.moves]
    if leavers and len(leavers) == len(active):
        ranks = {seat.id: rank for rank, seat in enumerate(active)}
        reasons = [*Why][::-1]
        first = min(leavers, key=lambda one: (reasons.index(one.why), ranks[one.id]))
        order = [first, *(one for one in order if one is not first)]
    return order


def _floor(now: Snapshot, active: Sequence[Seat], leaving: Sequence[Leaver]) -> int:
    """The smallest ring that may be left, when these leave.

    Who moves stays as far as the ring would become smaller than planned, also where nobody can
    start workers now: whoever asked for the migration gives it up. Who was asked to leave waits
    only for workers that can come. Who must go, goes.
    """
    plan = _without(now.plan, leaving)
    refilled = sum(one.refilled for one in leaving)

    def at_least(wanted: int) -> int:
        return min(len(active), max(wanted - refilled, now.job.min_np))

    if any(one.moves for one in leaving):
        return at_least(sum(plan.values()))
    if any(not one.must for one in leaving):
        return at_least(_attainable(now, active, plan))
    return 0


# --- 4. the pairs, or who they wait for


def _absent(
    now: Snapshot,
    active: Sequence[Seat],
    leavers: Sequence[Leaver],
    plan: Mapping[str, int],
    arrived: Sequence[str],
) -> list[str]:
    """Workers that are about to start, told by host. ``arrived``: hosts of newcomers.

    Who starts them is there: an agent, or under horovodrun an `edl-worker`.
    """
    leaving = {one.id for one in leavers}
    here = Counter([*(seat.host for seat in active if seat.id not in leaving), *arrived])
    starting = {host.name for host in now.hosts} | {slot.host for slot in now.slots}
    lacking = {host: plan.get(host, 0) - here[host] for host in starting}
    return [f"{count} more of {host}" for host, count in sorted(lacking.items()) if count > 0]


def _standstill(
    target: Target,
    coming: Sequence[int],
    alive: Mapping[int, Member],
    train: int,
    wanted: int,
) -> str:
    """Why there is nothing to change now."""
    held = sorted(one.id for one in target.held)
    if held:
        when = verb(
            len(held), "leaves when its replacement is", "leave when their replacements are"
        )
        return f"{names(held)} {when} ready"
    mute = [w for w in coming if alive[w].stage is Stage.READY]
    if mute:
        do = verb(len(mute), "does", "do")
        return f"{names(mute)} {do} not answer; {train} of {wanted} train"
    if coming:
        return f"{names(coming)} {verb(len(coming))} preparing; {train} of {wanted} train"
    return f"{workers_train(train)}; {wanted} {verb(wanted)} wanted"


def _generation(
    current: Generation,
    alive: Mapping[int, Member],
    term: int,
    wanted: int,
    joining: Sequence[int],
    leaving: Sequence[int],
) -> Generation:
    """Those who stay, in their order, then those who join."""
    active = current.seats
    stay = [seat for seat in active if seat.id not in leaving]
    seats = (*stay, *(seat_of(alive[w]) for w in sorted(joining)))
    parts = []
    if joining:
        parts.append(f"{names(sorted(joining))} joined")
    if leaving:
        parts.append(f"{names(sorted(leaving))} left")
    reason = f"{' and '.join(parts)}: {len(active)} -> {workers(len(seats))}, {wanted} wanted"
    return Generation(
        number=current.number + 1,
        term=term,
        seats=seats,
        sync_root=stay[0].id if stay else -1,
        joined=tuple(sorted(joining)),
        left=tuple(sorted(leaving)),
        reason=reason if seats else f"{reason}; the job ends",
        previous=active,
    )
