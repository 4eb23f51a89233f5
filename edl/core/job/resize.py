"""A planned change of a ring that runs: who comes in and who goes, in one switch.

The steps, each a function below:

1. Who leaves: whom a request or a signal asks to, and whom the plan no longer wants.
2. Who comes: on each host as many as the plan lacks there; the others are given up.
3. Who waits: newcomers for others that come up with them, briefly, or until the last one is ready
   when they take the places of others; leavers for the newcomers that replace them.
4. The generation of those who stay and those who join.

Its rules are those of :mod:`edl.core.job.membership`, rule 5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from edl.core.job.decision import Ages, Decision, Limits, end, is_stuck, seat_of
from edl.core.plural import names, verb, workers, workers_train
from edl.core.records import Generation, Member, Request, Seat, Snapshot, Stage


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
    active, order = current.seats, current.members
    newcomers = [
        m for m in alive.values() if m.generation == 0 and m.stage in (Stage.PREPARING, Stage.READY)
    ]
    plan, answers, drained = _requests(now, active)
    asked = [s.id for s in active if alive[s.id].stage is Stage.LEAVING and s.id not in drained]
    if now.job.driver and len(asked) == len(active) and not newcomers:
        return end(now, term, "all workers were asked to leave, as when horovodrun ends")
    if not now.job.driver:
        plan = _lowered(now, plan, active, asked, drained)
    unwanted = _unwanted(active, [*asked, *drained], plan, by_slot=bool(now.job.driver))
    leaving = [*asked, *drained, *unwanted]

    evict, joining, coming = _newcomers(
        newcomers, now, active, leaving, plan, current.number, silent, ages, limits
    )

    def only(reason: str) -> Decision:
        """No switch now: the plan is lowered when those leave who lower it, and not before.

        Else they would lower it once more with each look. So an accepted drain stays open, too.
        """
        refused = tuple(answer for answer in answers if not answer.accepted)
        return Decision(reason, None, None, evict, refused)

    ready_s = max((ages.stage_s.get(w, 0.0) for w in joining), default=0.0)
    if joining and coming and ready_s < limits.gather_s:
        return only(f"{names(joining)} are ready and wait for {names(coming)}")
    joining = joining[: max(0, now.job.max_np - (len(active) - len(leaving)))]
    refilled = len(asked) if now.job.driver else 0  # the slot is free when they have left
    attainable = _attainable(now, active, plan)

    def held_with(joining: Sequence[int]) -> list[int]:
        floors = (
            min(len(active), max(wanted - refilled, now.job.min_np))
            for wanted in (sum(plan.values()), attainable)
        )
        elsewhere = [*(w for w, share in drained.items() if share == 0), *unwanted]
        patient = [w for w in (*asked, *drained) if w not in elsewhere]
        patient = [w for w in patient if not _impatient(alive[w], ages, limits)]
        staying = len(active) - len(leaving) + len(joining)
        return _held(elsewhere, patient, staying, *floors)

    held = held_with(joining)

    # Who takes the places of others waits for the last one, unless somebody is in a hurry.
    absent = _absent(now, active, leaving, plan, [alive[w].host for w in (*joining, *coming)])
    rest = [*(f"w{worker}" for worker in coming), *absent]
    hurry = any(alive[seat.id].stage is Stage.LEAVING for seat in active)
    hurry |= len(active) < attainable or ready_s >= limits.prepare_s
    together = joining if held and rest and not hurry else []
    if together:
        joining = []
        held = held_with(joining)
    leaving = [w for w in leaving if w not in held]
    if together and not leaving:
        return only(f"{names(together)} are ready and move together with {', '.join(rest)}")
    if not joining and not leaving:
        return only(_standstill(held, coming, alive, len(active), sum(plan.values())))
    if joining and len(leaving) == len(active):
        # Somebody has to bring the state into the new ring; rather one that is not in a hurry.
        bringer = min(
            leaving, key=lambda w: (alive[w].stage is Stage.LEAVING, w in drained, order.index(w))
        )
        leaving.remove(bringer)
        held.append(bringer)
        joining = joining[: max(1, now.job.max_np - 1)]
    for seat in (seat for seat in active if seat.id in drained and seat.id in held):
        plan[seat.host] += drained[seat.id]  # its turn has not come, nor that of the answer
        answers = tuple(one for one in answers if not (one.accepted and one.worker == seat.id))
    new = _generation(current, alive, term, sum(plan.values()), joining, leaving)
    changed_plan = plan if plan != dict(now.plan) else None
    return Decision(new.reason, new, changed_plan, evict, answers)


def _requests(
    now: Snapshot, active: Sequence[Seat]
) -> tuple[dict[str, int], tuple[Request, ...], dict[int, int]]:
    """Answer the open requests; each accepted drain lowers the plan of its host by one.

    Not where nobody is wanted on that host anyway: by how much each did is told by worker.
    """
    plan = dict(now.plan)
    answers: list[Request] = []
    drained: dict[int, int] = {}
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
                f"cannot drain w{seat.id}: {workers_train(len(active) - len(drained))}, "
                f"{sum(plan.values())} {verb(sum(plan.values()))} wanted and min_np is "
                f"{now.job.min_np}; scale out first"
            )
        else:
            accepted, outcome = True, f"w{seat.id} leaves with the next switch"
            drained[seat.id] = min(1, plan.get(seat.host, 0))
            plan[seat.host] = plan.get(seat.host, 0) - drained[seat.id]
        answers.append(
            Request(request.kind, request.worker, request.number, True, accepted, outcome)
        )
    return plan, tuple(answers), drained


def _attainable(now: Snapshot, active: Sequence[Seat], plan: Mapping[str, int]) -> int:
    """How many workers the plan wants that are there, or that somebody can start.

    Nobody can on a host without an agent: perhaps it has died, and its share stays in the plan.
    """
    if now.job.driver:
        return sum(plan.values())
    agents, here = {host.name for host in now.hosts}, Counter(seat.host for seat in active)
    return sum(n if host in agents else min(n, here[host]) for host, n in plan.items())


def _lowered(
    now: Snapshot,
    plan: Mapping[str, int],
    active: Sequence[Seat],
    asked: Collection[int],
    drained: Collection[int],
) -> dict[str, int]:
    """The plan without those who were ``asked`` to leave by a signal.

    Each lowers it by one, unless it wants fewer on that host anyway, or min_np then needs a
    replacement.
    """
    lower = dict(plan)
    staying = Counter(seat.host for seat in active if seat.id not in drained)
    for host in (seat.host for seat in active if seat.id in asked):
        surplus = staying[host] > lower.get(host, 0)
        spare = _attainable(now, active, lower) > now.job.min_np
        if not surplus and spare and lower.get(host, 0) > 0:
            lower[host] -= 1
        staying[host] -= 1
    return lower


def _unwanted(
    active: Sequence[Seat], leaving: Collection[int], plan: Mapping[str, int], by_slot: bool
) -> list[int]:
    """Whom the plan no longer wants: the highest ranks of each host, or whose slot is beyond."""
    unwanted: list[int] = []
    for host in sorted({seat.host for seat in active}):
        here = [s for s in active if s.host == host and s.id not in leaving]
        wanted = plan.get(host, 0)
        unwanted += (
            [s.id for s in here if s.slot >= wanted] if by_slot else [s.id for s in here[wanted:]]
        )
    return unwanted


def _newcomers(
    newcomers: Sequence[Member],
    now: Snapshot,
    active: Sequence[Seat],
    leaving: Sequence[int],
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


def _held(
    elsewhere: Sequence[int], patient: Sequence[int], staying: int, planned: int, attainable: int
) -> list[int]:
    """The last to be asked, who wait for their replacements, in one switch with them.

    Those whom the plan wants ``elsewhere`` stay as far as the ring would become smaller than
    ``planned``, also where nobody can start workers now: whoever asked for their migration gives
    it up. Who was asked to leave waits only for workers that can come (``attainable``).
    """
    lacking = max(0, planned - staying)
    held = list(elsewhere[-lacking:]) if lacking else []
    lacking = max(0, attainable - staying - len(held))
    return [*held, *(patient[-lacking:] if lacking else [])]


def _impatient(member: Member, ages: Ages, limits: Limits) -> bool:
    """Whether a leaver has waited for its replacement for as long as it can."""
    return member.stage is Stage.LEAVING and (
        ages.stage_s.get(member.id, 0.0) >= limits.leave_grace_s
    )


def _absent(
    now: Snapshot,
    active: Sequence[Seat],
    leaving: Sequence[int],
    plan: Mapping[str, int],
    arrived: Sequence[str],
) -> list[str]:
    """Workers that are about to start, told by host. ``arrived``: hosts of newcomers.

    Who starts them is there: an agent, or under horovodrun an `edl-worker`.
    """
    here = Counter([*(seat.host for seat in active if seat.id not in leaving), *arrived])
    starting = {host.name for host in now.hosts} | {slot.host for slot in now.slots}
    lacking = {host: plan.get(host, 0) - here[host] for host in starting}
    return [f"{count} more of {host}" for host, count in sorted(lacking.items()) if count > 0]


def _standstill(
    held: Sequence[int], coming: Sequence[int], alive: Mapping[int, Member], train: int, wanted: int
) -> str:
    """Why there is nothing to change now."""
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
