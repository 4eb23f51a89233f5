"""Change the members of a ring that trains: which workers join and which leave, in one switch.

The entry point is :func:`next_generation`, whose steps are:

1. Find the workers that may leave: those that a signal or a request asks to leave, and those beyond
   the assigned number. If a crash has left a size that is not allowed, fewer are assigned.
2. Sort the newcomers: each host gets newcomers up to its assigned number of workers, and further
   newcomers are evicted.
3. Choose the target: the size of the ring after the switch, and the departures to postpone for it.
4. Switch, or wait: newcomers wait briefly for other newcomers that are preparing, and longer where
   they take the places of workers that train meanwhile. Workers that got SIGTERM wait briefly for
   the other workers of their host.

This is rule 5 of :mod:`edl.core.job.membership`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from edl.core.job.ages import Ages
from edl.core.job.decision import Limits, MembershipDecision, end_generation, is_stuck, ring_member
from edl.core.job.departures import (
    ALL_ASKED,
    Departure,
    DepartureCause,
    attainable,
    attainable_size,
    departures_of,
    gather_departures,
    without_departed,
)
from edl.core.job.desired import DesiredChange, set_desired
from edl.core.job.placement import Placement, place_workers
from edl.core.plural import names, verb, workers, workers_train
from edl.core.records import Assigned, Generation, Member, Request, RequestedBy, RingMember, Stage
from edl.core.snapshot import Snapshot


@dataclass(frozen=True)
class Target:
    """The ring that is planned for after a switch."""

    size: int
    joining: tuple[int, ...]  # worker ids
    leaving: tuple[Departure, ...]
    postponed: tuple[Departure, ...]  # put off, so that the ring keeps enough workers


@dataclass(frozen=True)
class Newcomers:
    """The newcomers of a ring, sorted by what happens to them."""

    ready: tuple[int, ...]  # the ids of those that may join with the next switch
    coming: tuple[int, ...]  # the ids of those that are expected to become ready
    evict: Mapping[int, str]  # the reason, by worker id
    ready_s: float  # the longest time for which one of `ready` has been ready; 0.0: none is


def next_generation(
    now: Snapshot,
    current: Generation,  # which all its members have entered
    healthy: Mapping[int, Member],  # among them all members of `current`
    term: int,
    ages: Ages,
    limits: Limits,
    unresponsive: frozenset[int],
) -> MembershipDecision:
    """Return the decision with the next generation of a ring that trains, or why there is none."""
    active, before = current.members, now.assigned
    now = _with_allowed_size(now, active, ages, limits)
    arriving = _arriving(healthy)
    answers, leavers = departures_of(now, active, healthy, ages, limits)
    # Horovodrun's driver assigns slots, and sends SIGTERM to each worker when it ends: no worker
    # would be started for those that leave.
    if not arriving and _all_terminated(now, active, leavers):
        return end_generation(now, term, ALL_ASKED)
    newcomers = _sort_newcomers(arriving, now, current, leavers, unresponsive, ages, limits)
    evict = newcomers.evict
    refused = tuple(answer for answer in answers if not answer.accepted)
    # Newcomers that come up together join in one switch, for each switch costs a pause.
    if newcomers.ready and newcomers.coming and newcomers.ready_s < limits.gather_s:
        reason = f"{names(newcomers.ready)} are ready and wait for {names(newcomers.coming)}"
        return MembershipDecision(reason, None, None, evict, refused)
    # Newcomers that join at the end of the epoch hold up no worker that leaves in any case.
    target = _target(now, active, leavers, ())
    if not (current.at_epochs and target.leaving):
        target = _target(now, active, leavers, newcomers.ready)
    # Newcomers that take the places of other workers wait for the last of them: meanwhile the ring
    # lacks no worker, and the migration of several workers is one switch.
    awaited = _awaited(now, active, leavers, newcomers, healthy)
    may_wait = _may_wait(now, active, leavers, target, newcomers, healthy, limits)
    together = target.joining if awaited and may_wait else ()
    if together:
        target = _target(now, active, leavers, ())
    # Without a worker that joins or leaves, the next generation would be the present one.
    if not target.joining and not target.leaving:
        reason = _standstill(now, target, newcomers, healthy)
        if together:
            reason = f"{names(together)} are ready and move together with {', '.join(awaited)}"
        return MembershipDecision(reason, None, None, evict, refused)
    # Workers of a host that get SIGTERM one after another leave in one switch, too.
    wait = gather_departures(now, active, leavers, target.leaving, ages, limits)
    if wait and not target.joining:
        return MembershipDecision(wait[0], None, None, evict, refused, again_s=wait[1])
    return _switch(now, before, current, healthy, term, target, answers, evict)


def _arriving(healthy: Mapping[int, Member]) -> list[Member]:
    """Return the workers that have never been in a ring and are preparing or ready to join one."""
    stages = (Stage.PREPARING, Stage.READY)
    return [
        member for member in healthy.values() if member.generation == 0 and member.stage in stages
    ]


def _all_terminated(
    now: Snapshot, active: Sequence[RingMember], leavers: Sequence[Departure]
) -> bool:
    terminated = sum(one.why is DepartureCause.SIGNAL for one in leavers)
    return now.assigned.by_slot and terminated == len(active)


def _switch(
    now: Snapshot,
    before: Assigned,  # as in ZooKeeper; see `_with_allowed_size`
    current: Generation,
    healthy: Mapping[int, Member],
    term: int,
    target: Target,
    answers: Sequence[Request],
    evict: Mapping[int, str],
) -> MembershipDecision:
    """Return the decision to switch to the ring `target`, with the next generation."""
    # The desired number falls with the switch in which a worker leaves, and not before: else it
    # would fall again with each decision. So the drain of a postponed worker stays open, too.
    postponed = {one.id for one in target.postponed}
    closed = tuple(one for one in answers if not (one.accepted and one.worker in postponed))
    lowered = without_departed(now.assigned.hosts, target.leaving)
    leaving = [one.id for one in target.leaving]
    wanted, may_wait = sum(lowered.values()), now.job.sizes.enough(len(current.members))
    new = _generation(current, healthy, term, wanted, target.joining, leaving, may_wait)
    return MembershipDecision(
        new.reason, new, _changed(now, before, lowered, leaving), evict, closed
    )


def _changed(
    now: Snapshot, before: Assigned, lowered: Placement, leaving: Sequence[int]
) -> DesiredChange | None:
    """Return the change of the desired workers to write with a switch; None if nothing changes."""
    if lowered == before.hosts:
        return None
    why = f"{names(leaving)} {verb(len(leaving), 'leaves', 'leave')}"
    if now.assigned is not before:
        why = f"nobody can start who is lacking, and the job may have {now.job.sizes}"
    return set_desired(now.desired, before, lowered, RequestedBy.LEADER, why)


def _with_allowed_size(
    now: Snapshot, active: Sequence[RingMember], ages: Ages, limits: Limits
) -> Snapshot:
    """Return `now`, with fewer assigned if a crash has left a size that is not allowed."""
    sizes, assigned = now.job.sizes, now.assigned
    left, size = len(active), sizes.below(len(active))
    # A launcher that assigns slots fills them again.
    if assigned.by_slot:
        return now
    # The size is allowed, or as many are assigned, or the job may have no smaller size.
    if size is None or left in (size, assigned.np):
        return now
    # An agent can start the workers that are lacking, or a host may still come back.
    attained = attainable(now, active, assigned.hosts)
    if sum(attained.values()) != left or ages.generation_s < limits.start_s:
        return now
    hosts = place_workers(now.job.name, size, attained, now.agents)
    return replace(now, assigned=replace(assigned, hosts=hosts))


# --- 2. the newcomers, sorted


def _sort_newcomers(
    arriving: Sequence[Member],
    now: Snapshot,
    current: Generation,
    leavers: Sequence[Departure],
    unresponsive: Collection[int],
    ages: Ages,
    limits: Limits,
) -> Newcomers:
    """Sort the newcomers by whether they may join, are awaited, or are evicted."""
    assigned = without_departed(now.assigned.hosts, leavers)
    misplaced = _beyond(arriving, now.assigned, assigned)
    placed = [m for m in arriving if m.id not in misplaced]
    evict = dict.fromkeys(misplaced, "its launcher has taken back its slot")
    unaware = _unaware(arriving, current.number)
    ready: list[int] = []
    coming: list[int] = []
    able = {m.id for m in placed if m.stage is Stage.READY}.difference(unaware, unresponsive)
    lacking = _lacking(current.members, leavers, assigned)
    for member in sorted(placed, key=lambda m: (m.host, m.id not in able, m.id)):
        # A host has as many workers as are assigned to it.
        if lacking[member.host] <= 0:
            wanted = assigned.get(member.host, 0)
            evict[member.id] = f"host {member.host} has the {workers(wanted)} wanted there"
            continue
        lacking[member.host] -= 1
        if late := _too_late(member, unaware, ages, limits):
            evict[member.id] = late
        else:
            (ready if member.id in able else coming).append(member.id)
    ready_s = max((ages.stage_s.get(worker, 0.0) for worker in ready), default=0.0)
    return Newcomers(tuple(ready), tuple(coming), evict, ready_s)


def _beyond(arriving: Sequence[Member], launcher: Assigned, assigned: Placement) -> list[int]:
    """Return the ids of the newcomers whose slots the launcher has taken back."""
    if not launcher.by_slot:
        return []
    return sorted(m.id for m in arriving if m.slot >= assigned.get(m.host, 0))


def _unaware(arriving: Sequence[Member], generation: int) -> set[int]:
    # A newcomer may join once it has noted the newest generation in its record, if it is ready for
    # the latest call of Keras' `fit`.
    fits = max((m.fits for m in arriving if m.stage is Stage.READY), default=0)
    return {m.id for m in arriving if m.newest_generation < generation or m.fits < fits}


def _lacking(
    active: Sequence[RingMember], leavers: Sequence[Departure], assigned: Placement
) -> Counter[str]:
    """Return how many workers each host lacks after the departures; below 0: it has too many."""
    leaving = {one.id for one in leavers}
    lacking = Counter(dict(assigned))
    lacking.subtract(member.host for member in active if member.id not in leaving)
    return lacking


def _too_late(member: Member, unaware: Collection[int], ages: Ages, limits: Limits) -> str:
    """Return a clause why a newcomer that exceeded a time limit is evicted; empty if it has not."""
    if is_stuck(member, ages, limits):
        return f"it was not ready after {limits.prepare_s:g} s"
    ready = member.stage is Stage.READY
    if ready and member.id in unaware and _asleep(member, ages, limits):
        return f"it was ready and takes no note of what goes on for {limits.notice_s:g} s"
    return ""


def _asleep(member: Member, ages: Ages, limits: Limits) -> bool:
    return min(ages.generation_s, ages.stage_s.get(member.id, 0.0)) >= limits.notice_s


# --- 3. the target, and the departures that are postponed for it


def _target(
    now: Snapshot, active: Sequence[RingMember], leavers: Sequence[Departure], ready: Sequence[int]
) -> Target:
    """Choose the ring after the switch: the largest that postpones the fewest departures."""
    order = _hold_order(active, leavers)
    # A worker has to bring the state into a new ring; that one goes with the next switch.
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
    # No size is allowed: only the workers leave that must, and at most as many newcomers join.
    leaving = [one for one in leavers if one.must and one not in source]
    joined = min(len(ready), len(leaving))
    size = len(active) - len(leaving) + joined
    return Target(size, tuple(ready[:joined]), tuple(leaving), (*source, *can_wait))


def _fits(now: Snapshot, size: int, train: int, leaving: Sequence[Departure]) -> bool:
    """Return whether a ring of `train` workers may be changed to `size` workers in one switch."""
    # Besides the changes that the job's sizes allow, a ring may shrink to the assigned number, and
    # to any number for a moment if the launcher refills a slot.
    assigned = sum(without_departed(now.assigned.hosts, leaving).values())
    refilled = any(one.refilled for one in leaving)
    return now.job.sizes.keeps(size, train) or refilled or (size == assigned < train)


def _hold_order(active: Sequence[RingMember], leavers: Sequence[Departure]) -> list[Departure]:
    """Return the departures in the order in which they are postponed if the ring needs workers."""
    # First workers that wait for a replacement, then drained ones, then those that got SIGTERM.
    order = [one for one in leavers[::-1] if one.moves]
    order += [one for one in leavers[::-1] if not one.moves]
    # All leave, so one must stay to send the state to the newcomers: an unassigned worker, else a
    # drained one; of several, the one of lowest rank.
    if leavers and len(leavers) == len(active):
        ranks = {member.id: rank for rank, member in enumerate(active)}
        reasons = [*DepartureCause][::-1]
        first = min(leavers, key=lambda one: (reasons.index(one.why), ranks[one.id]))
        order = [first, *(one for one in order if one is not first)]
    return order


def _floor(now: Snapshot, active: Sequence[RingMember], leaving: Sequence[Departure]) -> int:
    """Return the smallest size that the ring may have after the departures `leaving`."""
    assigned = without_departed(now.assigned.hosts, leaving)
    refilled = sum(one.refilled for one in leaving)

    def at_least(wanted: int) -> int:
        return min(len(active), max(now.job.sizes.fit(wanted) - refilled, now.job.sizes.min_np))

    # One that waits for a replacement leaves the wanted size, even if no agent can start the other.
    if any(one.moves for one in leaving):
        return at_least(sum(assigned.values()))
    # One that was asked to leave does not wait for workers that nobody can start.
    if any(not one.must for one in leaving):
        return at_least(attainable_size(now, active, assigned))
    return 0  # all must leave, whatever the size


# --- 4. switch, or wait


def _may_wait(
    now: Snapshot,
    active: Sequence[RingMember],
    leavers: Sequence[Departure],
    target: Target,
    newcomers: Newcomers,
    healthy: Mapping[int, Member],
    limits: Limits,
) -> bool:
    """Return whether ready newcomers that replace other workers may wait for further newcomers."""
    # No worker waits for its replacement, so nothing is gained.
    if not target.postponed:
        return False
    # A worker that got SIGTERM has little time left.
    if any(healthy[member.id].stage is Stage.LEAVING for member in active):
        return False
    # The ring lacks workers, so training is slower meanwhile.
    if len(active) < attainable_size(now, active, without_departed(now.assigned.hosts, leavers)):
        return False
    # The last ones had as much time as any newcomer has to become ready.
    return newcomers.ready_s < limits.prepare_s


def _awaited(
    now: Snapshot,
    active: Sequence[RingMember],
    leavers: Sequence[Departure],
    newcomers: Newcomers,
    healthy: Mapping[int, Member],
) -> list[str]:
    """Return what ready newcomers may wait for, in words: "w5", "2 more of b" (a host)."""
    lacking = _lacking(active, leavers, without_departed(now.assigned.hosts, leavers))
    lacking.subtract(healthy[w].host for w in (*newcomers.ready, *newcomers.coming))
    # An agent starts workers, or under horovodrun an `edl-worker`.
    hosts = {host.name for host in now.hosts} | {slot.host for slot in now.slots}
    coming = [f"w{worker}" for worker in newcomers.coming]
    return coming + [
        f"{lacking[host]} more of {host}" for host in sorted(hosts) if lacking[host] > 0
    ]


def _standstill(
    now: Snapshot, target: Target, newcomers: Newcomers, healthy: Mapping[int, Member]
) -> str:
    """Return a sentence that says why the ring does not change yet, and what it waits for."""
    train, wanted = target.size, now.assigned.np
    ready, coming = newcomers.ready, newcomers.coming
    postponed = sorted(one.id for one in target.postponed)
    if postponed:
        when = verb(
            len(postponed), "leaves when its replacement is", "leave when their replacements are"
        )
        return f"{names(postponed)} {when} ready"
    if ready:
        wait = verb(len(ready), "is ready and waits", "are ready and wait")
        return f"{names(ready)} {wait}: the job may have {now.job.sizes}; {train} of {wanted} train"
    unresponsive = [w for w in coming if healthy[w].stage is Stage.READY]
    if unresponsive:
        do = verb(len(unresponsive), "does", "do")
        return f"{names(unresponsive)} {do} not answer; {train} of {wanted} train"
    if coming:
        return f"{names(coming)} {verb(len(coming))} preparing; {train} of {wanted} train"
    return f"{workers_train(train)}; {wanted} {verb(wanted)} wanted"


def _generation(
    current: Generation,
    healthy: Mapping[int, Member],
    term: int,
    wanted: int,
    joining: Sequence[int],
    leaving: Sequence[int],
    may_wait: bool,
) -> Generation:
    """Return the next generation: the members that stay, in their order, then newcomers by id."""
    active = current.members
    stay = [member for member in active if member.id not in leaving]
    members = (*stay, *(ring_member(healthy[w]) for w in sorted(joining)))
    parts = []
    if joining:
        who = names(sorted(joining))
        later = f"{who} {verb(len(joining), 'joins', 'join')} at the next epoch's start"
        parts.append(later if current.at_epochs and may_wait else f"{who} joined")
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
        fits=max((healthy[worker].fits for worker in joining), default=0),
    )
