"""A planned change of a ring that runs: who comes in and who goes, in one switch.

The steps, each a function below:

1. Who may leave, and why: whom a signal or a request asks to, and who is more than are assigned.
   A size that a crash has left and the job may not have is such a reason, too.
2. Who is ready: on each host as many newcomers as are lacking there; the others are evicted.
3. The target: one size for the ring after the switch, and who stays for its sake.
4. The pairs: who joins and who leaves, or who they wait for. Newcomers wait for others that come
   up with them, briefly, or until the last one is ready when they take the places of others.

Its rules are those of :mod:`edl.core.job.membership`, rule 5.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from edl.core.job.ages import Ages
from edl.core.job.decision import Limits, MembershipDecision, end, is_stuck, seat_of
from edl.core.job.departures import (
    Departure,
    Why,
    attainable,
    attainable_size,
    departures_of,
    without,
)
from edl.core.job.desired import Change, set_desired
from edl.core.job.placement import Placement, place
from edl.core.plural import names, verb, workers, workers_train
from edl.core.records import Assigned, Generation, Member, RequestedBy, RingMember, Snapshot, Stage


@dataclass(frozen=True)
class Target:
    """The ring after the switch: its ``size``, who joins, who leaves, who stays for now."""

    size: int
    joining: tuple[int, ...]
    leaving: tuple[Departure, ...]
    postponed: tuple[Departure, ...]


def change(
    now: Snapshot,
    current: Generation,
    alive: Mapping[int, Member],
    term: int,
    ages: Ages,
    limits: Limits,
    silent: frozenset[int],
) -> MembershipDecision:
    """The next generation of a ring whose members are all ``alive``; else why there is none now."""
    active = current.members
    before, settled = now.assigned, _settled(now, active, ages, limits)
    if settled is not None:
        now = replace(now, assigned=replace(before, hosts=settled))
    newcomers = [
        m for m in alive.values() if m.generation == 0 and m.stage in (Stage.PREPARING, Stage.READY)
    ]
    answers, leavers = departures_of(now, active, alive, ages, limits)
    signalled = sum(one.why is Why.SIGNAL for one in leavers)
    if now.assigned.by_slot and signalled == len(active) and not newcomers:
        return end(now, term, "all workers were asked to leave, as when horovodrun ends")
    assigned = without(now.assigned.hosts, leavers)
    evict, ready, coming = _newcomers(
        newcomers, now, active, leavers, assigned, current.number, silent, ages, limits
    )
    refused = tuple(answer for answer in answers if not answer.accepted)
    ready_s = max((ages.stage_s.get(w, 0.0) for w in ready), default=0.0)
    if ready and coming and ready_s < limits.gather_s:
        reason = f"{names(ready)} are ready and wait for {names(coming)}"
        return MembershipDecision(reason, None, None, evict, refused)

    target = _target(now, active, leavers, ready)
    # Who takes the places of others waits for the last one, unless one of them is urgent.
    absent = _absent(now, active, leavers, assigned, [alive[w].host for w in (*ready, *coming)])
    rest = [*(f"w{worker}" for worker in coming), *absent]
    urgent = any(alive[member.id].stage is Stage.LEAVING for member in active)
    urgent |= len(active) < attainable_size(now, active, assigned) or ready_s >= limits.prepare_s
    together = list(target.joining) if target.postponed and rest and not urgent else []
    if together:
        target = _target(now, active, leavers, [])
    if not target.joining and not target.leaving:
        reason = _standstill(now, target, ready, coming, alive)
        if together:
            reason = f"{names(together)} are ready and move together with {', '.join(rest)}"
        return MembershipDecision(reason, None, None, evict, refused)
    # Fewer are wanted when those leave who are wanted no more, and not before: else it would be
    # one fewer with each look. So the drain of who is held stays open, too.
    held = {one.id for one in target.postponed}
    answers = tuple(one for one in answers if not (one.accepted and one.worker in held))
    lowered = without(now.assigned.hosts, target.leaving)
    leaving = [one.id for one in target.leaving]
    new = _generation(current, alive, term, sum(lowered.values()), target.joining, leaving)
    changed = _changed(now, before, lowered, leaving)
    return MembershipDecision(new.reason, new, changed, evict, answers)


def _changed(
    now: Snapshot, before: Assigned, lowered: Placement, leaving: Sequence[int]
) -> Change | None:
    """What is desired with a switch; None: as before, also where slots are assigned."""
    if lowered == before.hosts:
        return None
    why = f"{names(leaving)} {verb(len(leaving), 'leaves', 'leave')}"
    if now.assigned is not before:
        why = f"nobody can start who is lacking, and the job may have {now.job.sizes}"
    return set_desired(now.desired, before, lowered, RequestedBy.LEADER, why)


def _settled(
    now: Snapshot, active: Sequence[RingMember], ages: Ages, limits: Limits
) -> dict[str, int] | None:
    """What to assign, with the next smaller size, when a crash has left one that is not allowed.

    Not while somebody can start who is lacking, nor before a host could have come back; and not
    where slots are assigned, which would be filled again.
    """
    sizes, assigned = now.job.sizes, now.assigned
    left, size = len(active), sizes.below(len(active))
    kept = attainable(now, active, assigned.hosts)
    waits = assigned.by_slot or sum(kept.values()) != left or ages.generation_s < limits.start_s
    if waits or size in (None, left) or left == assigned.np:
        return None
    return place(now.job.name, size, kept, now.hosts)


# --- 2. who is ready


def _newcomers(
    newcomers: Sequence[Member],
    now: Snapshot,
    active: Sequence[RingMember],
    leavers: Sequence[Departure],
    assigned: Placement,
    generation: int,
    silent: Collection[int],
    ages: Ages,
    limits: Limits,
) -> tuple[dict[int, str], list[int], list[int]]:
    """Sort newcomers into those evicted, those that may join now and those still to come.

    Who is ``silent``, or behind with taking note of the present ``generation``, may be stuck;
    who builds a ring with it would wait in vain. Nor does a newcomer join that is ready for an
    earlier fit than another one.
    """
    fits = max((m.fits for m in newcomers if m.stage is Stage.READY), default=0)
    behind = {m.id for m in newcomers if m.newest_generation < generation or m.fits < fits}
    by_slot = now.assigned.by_slot
    misplaced = {m.id for m in newcomers if by_slot and m.slot >= assigned.get(m.host, 0)}
    newcomers = [m for m in newcomers if m.id not in misplaced]
    evict = dict.fromkeys(sorted(misplaced), "its launcher has taken back its slot")
    joining: list[int] = []
    coming: list[int] = []
    leaving = {one.id for one in leavers}
    ready = {m.id for m in newcomers if m.stage is Stage.READY}
    unaware, able = ready & behind, ready.difference(behind, silent)
    staying = Counter(ring_member.host for ring_member in active if ring_member.id not in leaving)
    lacking = {m.host: max(0, assigned.get(m.host, 0) - staying[m.host]) for m in newcomers}
    for member in sorted(newcomers, key=lambda m: (m.host, m.id not in able, m.id)):
        if lacking[member.host] == 0:
            wanted = assigned.get(member.host, 0)
            evict[member.id] = f"host {member.host} has the {workers(wanted)} wanted there"
            continue
        lacking[member.host] -= 1
        if is_stuck(member, ages, limits):
            evict[member.id] = f"it was not ready after {limits.prepare_s:g} s"
        elif member.id in unaware and _asleep(member, ages, limits):
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
    now: Snapshot, active: Sequence[RingMember], leavers: Sequence[Departure], ready: Sequence[int]
) -> Target:
    """The size of the ring after the switch: that for which the fewest of ``leavers`` are held.

    It is judged by what is assigned with that switch: who is held still counts there.
    """
    order = _hold_order(active, leavers)
    # Somebody has to bring the state into a new ring; that one goes with the next switch.
    source = order[:1] if ready and len(leavers) == len(active) else []
    can_wait = [one for one in order if not one.must and one not in source]
    for count in range(len(can_wait) + 1):
        postponed = [*source, *can_wait[:count]]
        leaving = [one for one in leavers if one not in postponed]
        for joined in range(len(ready), -1, -1):
            size = len(active) - len(leaving) + joined
            # A ring of one has two for the switch in which its only worker is replaced.
            alone = bool(source) and joined == len(active) == 1
            if (alone or _fits(now, size, len(active), leaving)) and size >= _floor(
                now, active, leaving
            ):
                return Target(size, tuple(ready[:joined]), tuple(leaving), tuple(postponed))
    leaving = [one for one in leavers if one.must and one not in source]
    joined = min(len(ready), len(leaving))
    size = len(active) - len(leaving) + joined
    return Target(size, tuple(ready[:joined]), tuple(leaving), (*source, *can_wait))


def _fits(now: Snapshot, size: int, train: int, leaving: Sequence[Departure]) -> bool:
    """Whether a ring of so many ``train`` on with ``size`` workers, by the sizes of the job.

    It may shrink to what is assigned in any case, and to refill a slot.
    """
    assigned = sum(without(now.assigned.hosts, leaving).values())
    refilled = any(one.refilled for one in leaving)
    return now.job.sizes.keeps(size, train) or refilled or (size == assigned < train)


def _hold_order(active: Sequence[RingMember], leavers: Sequence[Departure]) -> list[Departure]:
    """Who is held first: who moves, then who was drained, then who was sent SIGTERM.

    When all are to go, the first is one that is not urgent: it brings the state.
    """
    order = [one for one in leavers[::-1] if one.moves]
    order += [one for one in leavers[::-1] if not one.moves]
    if leavers and len(leavers) == len(active):
        ranks = {member.id: rank for rank, member in enumerate(active)}
        reasons = [*Why][::-1]
        first = min(leavers, key=lambda one: (reasons.index(one.why), ranks[one.id]))
        order = [first, *(one for one in order if one is not first)]
    return order


def _floor(now: Snapshot, active: Sequence[RingMember], leaving: Sequence[Departure]) -> int:
    """The smallest ring that may be left, when these leave.

    Who moves stays as far as the ring would become smaller than wanted, also where nobody can
    start workers now: whoever asked for the migration gives it up. Who was asked to leave waits
    only for workers that can come. Who must go, goes.
    """
    assigned = without(now.assigned.hosts, leaving)
    refilled = sum(one.refilled for one in leaving)

    def at_least(wanted: int) -> int:
        return min(len(active), max(now.job.sizes.fit(wanted) - refilled, now.job.sizes.min_np))

    if any(one.moves for one in leaving):
        return at_least(sum(assigned.values()))
    if any(not one.must for one in leaving):
        return at_least(attainable_size(now, active, assigned))
    return 0


# --- 4. the pairs, or who they wait for


def _absent(
    now: Snapshot,
    active: Sequence[RingMember],
    leavers: Sequence[Departure],
    assigned: Placement,
    arrived: Sequence[str],
) -> list[str]:
    """Workers that are about to start, by host. ``arrived``: hosts of newcomers.

    Who starts them is there: an agent, or under horovodrun an `edl-worker`.
    """
    leaving = {one.id for one in leavers}
    here = Counter([*(member.host for member in active if member.id not in leaving), *arrived])
    starting = {host.name for host in now.hosts} | {slot.host for slot in now.slots}
    lacking = {host: assigned.get(host, 0) - here[host] for host in starting}
    return [f"{count} more of {host}" for host, count in sorted(lacking.items()) if count > 0]


def _standstill(
    now: Snapshot,
    target: Target,
    ready: Sequence[int],
    coming: Sequence[int],
    alive: Mapping[int, Member],
) -> str:
    """Why there is nothing to change now."""
    train, wanted = target.size, now.assigned.np
    held = sorted(one.id for one in target.postponed)
    if held:
        when = verb(
            len(held), "leaves when its replacement is", "leave when their replacements are"
        )
        return f"{names(held)} {when} ready"
    if ready:
        wait = verb(len(ready), "is ready and waits", "are ready and wait")
        return f"{names(ready)} {wait}: the job may have {now.job.sizes}; {train} of {wanted} train"
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
    active = current.members
    stay = [member for member in active if member.id not in leaving]
    members = (*stay, *(seat_of(alive[w]) for w in sorted(joining)))
    parts = []
    if joining:
        parts.append(f"{names(sorted(joining))} joined")
    if leaving:
        parts.append(f"{names(sorted(leaving))} left")
    reason = f"{' and '.join(parts)}: {len(active)} -> {workers(len(members))}, {wanted} wanted"
    return Generation(
        number=current.number + 1,
        term=term,
        members=members,
        state_source=stay[0].id if stay else -1,
        joined=tuple(sorted(joining)),
        left=tuple(sorted(leaving)),
        reason=reason if members else f"{reason}; the job ends",
        previous=active,
        fits=max((alive[worker].fits for worker in joining), default=0),
    )
