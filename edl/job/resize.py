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

This is rule 5 of :mod:`edl.job.membership`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from edl.job.decision import (
    DesiredChange,
    Limits,
    MembershipDecision,
    end_generation,
    is_stuck,
    ring_member,
    set_desired,
)
from edl.job.liveness import Ages
from edl.job.placement import Placement, place_workers
from edl.job.snapshot import Snapshot
from edl.records import (
    Assigned,
    Generation,
    JobState,
    Member,
    Request,
    RequestedBy,
    RequestKind,
    RingMember,
    Stage,
)
from edl.text import counted, names, verb, workers, workers_train

# ------------------------------------------------------------
# Decide which workers may leave a ring that trains, and how the desired number falls with that.
#
# The entry point is `departures_of`. Which of these workers do leave with the next switch is
# decided in `resize`.
#
# A worker that got SIGTERM or was drained is not replaced: the number of desired workers falls by
# one with the switch in which it leaves. There are three exceptions. If its host has more workers
# than are assigned to it, the number stays. If the smaller number is not an allowed size of the
# job, another worker takes the place. If the launcher assigns workers by slot, it starts another
# worker in the slot, and the number stays.
#
# Each switch costs a pause, so workers of one host that get SIGTERM at nearly the same time leave
# in one switch: `gather_departures`.


ALL_ASKED = "all workers were asked to leave, as when horovodrun ends"


class DepartureCause(Enum):
    """Why a worker may leave the ring; of the workers that it needs, the last cause stays first."""

    SIGNAL = "it was sent SIGTERM"
    DRAIN = "its drain was accepted"  # or its replacement
    UNASSIGNED = "no worker is assigned to where it is"


@dataclass(frozen=True)
class Departure:
    """A worker that may leave the ring, and what its departure changes."""

    id: int
    host: str
    why: DepartureCause
    share: int = 0  # by how much the number wanted on `host` falls when it has left: 0 or 1
    must: bool = False  # it leaves with the next switch, however small the ring is then
    refilled: bool = False  # the launcher starts another one in its slot, but not before it left

    @property
    def moves(self) -> bool:
        """Whether another worker is to take the place of this one, which stays until then."""
        return self.why is DepartureCause.UNASSIGNED or (
            self.why is DepartureCause.DRAIN and self.share == 0
        )


def departures_of(
    now: Snapshot,
    active: Sequence[RingMember],
    healthy: Mapping[int, Member],
    ages: Ages,
    limits: Limits,
) -> tuple[tuple[Request, ...], tuple[Departure, ...]]:
    """Find the workers that may leave, and answer the open requests to drain or replace."""
    by_slot = now.assigned.by_slot
    revoked = {s.id for s in active if not now.assigned.grants(s.host, healthy[s.id].used_device)}
    answers, drained = _drained(now, active)
    gone = {one.id for one in drained}
    assigned = without_departed(now.assigned.hosts, drained)
    asked = [s for s in active if healthy[s.id].stage is Stage.LEAVING and s.id not in gone]
    shares = {} if by_slot else _shares(now, assigned, active, asked, gone)
    # Nobody is left who could start a replacement: to wait for one would take an engine's patience.
    alone = not now.hosts and not by_slot and len(asked) == len(active)
    signalled = tuple(
        Departure(
            *(s.id, s.host, DepartureCause.SIGNAL, shares.get(s.id, 0)),
            must=alone or _impatient(healthy[s.id], ages, limits),
            refilled=by_slot,
        )
        for s in asked
    )
    leavers = (*signalled, *drained)
    assigned = without_departed(assigned, signalled)
    leaving = {one.id for one in leavers}
    # In the order in which they should leave.
    return answers, (*leavers, *_unassigned(active, leaving, assigned, by_slot, revoked))


def gather_departures(
    now: Snapshot,
    active: Sequence[RingMember],
    leavers: Collection[Departure],
    leaving: Collection[Departure],  # in a switch now, in which no worker joins
    ages: Ages,
    limits: Limits,
) -> tuple[str, float] | None:
    """Return why, and how many seconds, those with SIGTERM wait for others of their hosts."""
    if not all(_may_gather(now, one, ages, limits) for one in leaving):
        return None
    here = Counter(member.host for member in active)
    asked = Counter(one.host for one in leavers)
    hosts = [host for host in sorted({one.host for one in leaving}) if asked[host] < here[host]]
    if not hosts:
        return None
    waited_s = max(ages.stage_s.get(one.id, 0.0) for one in leaving)
    so_far = ", ".join(f"{asked[host]} of {here[host]} on {host}" for host in hosts)
    reason = (
        f"{names(sorted(one.id for one in leaving))} {verb(len(leaving), 'leaves', 'leave')} "
        f"within {limits.leave_gather_s:g} s, in one switch with other workers of the same host "
        f"that are asked to leave by then; asked so far: {so_far}"
    )
    return reason, limits.leave_gather_s - waited_s


def _may_gather(now: Snapshot, one: Departure, ages: Ages, limits: Limits) -> bool:
    """Return whether the departure `one` may wait for other workers of its host to get SIGTERM."""
    # Without a share another worker takes its place, as where the launcher assigns by slot.
    if one.why is not DepartureCause.SIGNAL or one.must or not one.share:
        return False
    # The number wanted there has been lowered already: it is known who else is to leave.
    if any(reclaim.host == one.host for reclaim in now.desired.reclaims):
        return False
    return ages.stage_s.get(one.id, 0.0) < limits.leave_gather_s


def without_departed(assigned: Placement, leavers: Collection[Departure]) -> dict[str, int]:
    """Return a copy of `assigned` (workers by host) after the departures `leavers`."""
    lowered = dict(assigned)
    for one in leavers:
        if one.share:
            lowered[one.host] = lowered.get(one.host, 0) - one.share
    return lowered


def assigned_without_signalled(now: Snapshot) -> Placement:
    """Return the assigned workers by host, without those that leave by SIGTERM for good."""
    leaving = {member.id for member in now.members if member.stage is Stage.LEAVING}
    if now.generation is None or now.assigned.by_slot or not leaving:
        return now.assigned.hosts
    active = now.generation.members
    drained = _drained(now, active)[1]
    gone = {one.id for one in drained}
    asked = [member for member in active if member.id in leaving - gone]
    assigned = without_departed(now.assigned.hosts, drained)
    shares = _shares(now, assigned, active, asked, gone)
    lowered = dict(now.assigned.hosts)
    for member in asked:
        lowered[member.host] -= shares.get(member.id, 0)
    return lowered


def _drained(
    now: Snapshot, active: Sequence[RingMember]
) -> tuple[tuple[Request, ...], tuple[Departure, ...]]:
    """Answer all open requests to drain or replace workers, and return who leaves by them."""
    assigned = dict(now.assigned.hosts)
    answers: list[Request] = []
    drained: dict[int, Departure] = {}
    for request in now.requests:
        member = next((member for member in active if member.id == request.worker), None)
        left = len(active) - len(drained)
        if request.kind not in (*RequestKind,):
            accepted = False
            outcome = f"this leader does not know requests of kind {request.kind!r}"
        elif now.assigned.by_slot:
            accepted = False
            outcome = (
                f"cannot {request.kind} w{request.worker}: its launcher, horovodrun, would start "
                "another in its slot; use `edl scale`"
            )
        elif member is None or member.id in drained:
            accepted, outcome = False, f"w{request.worker} is not training in this job"
        elif request.kind == RequestKind.REPLACE:
            accepted, outcome = True, f"w{member.id} is replaced with the next switch"
            drained[member.id] = Departure(member.id, member.host, DepartureCause.DRAIN)
        elif why := _why_not(now, member, assigned, left):
            accepted, outcome = False, f"cannot drain w{member.id}: {why}"
        else:
            accepted, outcome = True, f"w{member.id} leaves with the next switch"
            share = min(1, assigned.get(member.host, 0))  # its host may have more than assigned
            drained[member.id] = Departure(member.id, member.host, DepartureCause.DRAIN, share)
            assigned[member.host] = assigned.get(member.host, 0) - share
        answers.append(replace(request, done=True, accepted=accepted, outcome=outcome))
    return tuple(answers), tuple(drained.values())


def attainable_size(now: Snapshot, active: Sequence[RingMember], assigned: Placement) -> int:
    """Return how many of the `assigned` workers are in the ring or can be started, on all hosts."""
    return sum(attainable(now, active, assigned).values())


def attainable(now: Snapshot, active: Sequence[RingMember], assigned: Placement) -> dict[str, int]:
    """Return by host how many of the `assigned` workers are in the ring or can be started."""
    if now.assigned.by_slot:
        return dict(assigned)
    # On a host without an agent, which may have died, nobody can start a worker.
    agents, here = {host.name for host in now.hosts}, Counter(member.host for member in active)
    return {host: n if host in agents else min(n, here[host]) for host, n in assigned.items()}


def _why_not(now: Snapshot, member: RingMember, assigned: Placement, left: int) -> str:
    """Return a clause that says why a worker cannot be drained; empty if it can."""
    sizes, np = now.job.sizes, sum(assigned.values())
    wanted = f"{workers_train(left)}, {np} {verb(np)} wanted"
    if not sizes.enough(min(np, left) - 1):
        return f"{wanted} and min_np is {sizes.min_np}; scale out first"
    if assigned.get(member.host, 0) and not sizes.allows(np - 1):
        return f"{wanted}; without it {np - 1} would be, and {sizes.refusal(np - 1)}"
    return ""


def _shares(
    now: Snapshot,
    assigned: Placement,
    active: Sequence[RingMember],
    asked: Sequence[RingMember],
    drained: Collection[int],  # in `active`, but subtracted from `assigned`
) -> dict[int, int]:
    """Decide for which workers that got SIGTERM the wanted number falls, so none replaces them."""
    sizes = now.job.sizes
    # It falls for as many as the job's sizes allow; the others need a replacement.
    for most in range(len(asked), 0, -1):
        lower, shares = dict(assigned), dict.fromkeys((member.id for member in asked), 0)
        staying = Counter(member.host for member in active if member.id not in drained)
        for member in asked:
            host = member.host
            # A host with more workers than are wanted keeps its number.
            surplus = staying[host] > lower.get(host, 0)
            if not surplus and lower.get(host, 0) > 0 and sum(shares.values()) < most:
                shares[member.id] = 1
                lower[host] -= 1
            staying[host] -= 1
        attainable = attainable_size(now, [s for s in active if not shares.get(s.id)], lower)
        if sizes.allows(sum(lower.values())) and sizes.enough(attainable):
            return shares
    return {}  # 0 for all


def _unassigned(
    active: Sequence[RingMember],
    leaving: Collection[int],
    assigned: Placement,
    by_slot: bool,
    revoked: Collection[int] = (),  # on devices that the job may not use any more
) -> tuple[Departure, ...]:
    """Return the departures of the workers beyond the number that is assigned to their host."""
    here_by_host: dict[str, list[RingMember]] = defaultdict(list)
    unwanted: list[RingMember] = []
    for member in active:
        if member.id not in leaving:
            (unwanted if member.id in revoked else here_by_host[member.host]).append(member)
    for host, here in sorted(here_by_host.items()):
        wanted = assigned.get(host, 0)
        # The workers in slots beyond the assigned ones, else the highest ranks of the host.
        unwanted += [s for s in here if s.slot >= wanted] if by_slot else here[wanted:]
    return tuple(
        Departure(member.id, member.host, DepartureCause.UNASSIGNED) for member in unwanted
    )


def _impatient(member: Member, ages: Ages, limits: Limits) -> bool:
    return ages.stage_s.get(member.id, 0.0) >= limits.leave_grace_s


# ------------------------------------------------------------
# Say whether the hosts of a job that has not begun can have enough workers for its first ring.
#
# A job may be created for several hosts before any agent runs there. The leader starts the first
# ring when all workers of these hosts are ready, or after a time limit with at least `min_np` of
# them (`decide`). With fewer it would wait for ever for a host that does not come, so the agents
# end such a job (`job_end`). `has_too_few_places` says whether the hosts of a job have too few
# workers to begin, and `why_too_few` gives the reason as a sentence.


def has_too_few_places(snapshot: Snapshot) -> bool:
    """Return whether a job cannot begin on its present hosts with any number that it may have."""
    if snapshot.generation is not None or snapshot.job.state is not JobState.RUNNING:
        return False
    if snapshot.assigned.by_slot:  # horovodrun's driver finds hosts
        return False
    return snapshot.job.sizes.below(sum(_places(snapshot).values())) is None


def why_too_few(snapshot: Snapshot, within_s: float) -> str:
    """Return the sentence with which a job fails because its hosts have too few workers."""
    here, places = sum(_workers(snapshot).values()), _places(snapshot)
    sizes = snapshot.job.sizes
    least = sizes.above(sizes.min_np) or sizes.min_np
    slots = {host.name: host.slots for host in snapshot.hosts}
    lacking = {
        host: n for host, n in sorted(snapshot.assigned.hosts.items()) if n > places.get(host, 0)
    }
    absent = [host for host in lacking if host not in slots]
    parts = [f"no agent of host {', '.join(absent)}"] if absent else []
    parts += [
        f"host {host} has {counted(slots[host], 'slot')} for {workers(n)}"
        for host, n in lacking.items()
        if host in slots
    ]
    who = f"{here} of at least {workers(least)}"
    return f"{who} came within {within_s:g} s: {'; '.join(parts) or 'no host has more workers'}"


def _workers(snapshot: Snapshot) -> Mapping[str, int]:
    return Counter(m.host for m in snapshot.members if m.id not in snapshot.evicted)


def _places(snapshot: Snapshot) -> dict[str, int]:
    """Return how many workers each host can have at most: those there, or what its agent starts."""
    here, slots = _workers(snapshot), {host.name: host.slots for host in snapshot.hosts}
    return {
        host: max(here.get(host, 0), min(snapshot.assigned.hosts.get(host, 0), slots.get(host, 0)))
        for host in sorted({*here, *snapshot.assigned.hosts})
    }


# ------------------------------------------------------------
# Compute the desired workers when a host joins a running job (`edl join`).
#
# The entry point is `request_workers`.
#
# In a cluster, hosts are replaced by hosts with other names. The workers desired on a host that is
# gone are therefore not counted when a host joins: with at most 4 workers allowed, a new host can
# get the 2 workers of a host that is gone.


def request_workers(
    snapshot: Snapshot,
    desired: Placement,
    host: str,
    np: int,
    got: int | None = None,  # how many were desired on `host` after it asked last; None: it did not
    late: bool = False,  # all hosts of a new job have had the time to register
) -> dict[str, int]:
    """Return the desired workers by host after a joining host has asked for `np` workers in all."""
    has = desired.get(host, 0)
    if withdrawn(has, got):
        return dict(desired)
    np = snapshot.assigned.most_on(host, np)
    starting = snapshot.generation is None and not late
    there = snapshot.present_in(desired) | {host} | (set(desired) if starting else set())
    new = {name: count if name in there else 0 for name, count in sorted(desired.items())}
    # A host that asks again gets only workers that were desired on hosts that are gone: a worker
    # that a person has removed is not added again.
    if got is not None:
        np = min(np, has + sum(desired.values()) - sum(new.values()))
    sizes, others = snapshot.job.sizes, sum(new.values()) - has
    new[host] = sizes.room(others, np, has)
    # Other hosts that still wait get workers together with it, as far as the job may have the sum:
    # with 2 workers and `--sizes 2,4`, two hosts that ask for 1 each get 1 each.
    if new[host] < np:
        asked = {one.name: one.requested_np for one in snapshot.hosts} | {host: np}
        wait = {name: max(0, n - new.get(name, 0)) for name, n in asked.items()}
        more = sizes.room(sum(new.values()), sum(wait.values()))
        for name in (host, *sorted(wait)):
            added = min(more, wait.pop(name, 0))
            new[name] = new.get(name, 0) + added
            more -= added
    return new


def withdrawn(has: int, got: int | None) -> bool:
    """Return whether workers were taken from a host since it asked for them: it must not again."""
    return got is not None and has < got


def is_last(snapshot: Snapshot, host: str) -> bool:
    """Return whether no workers are desired on any present host other than `host`."""
    others = snapshot.present - {host}
    return not any(count for name, count in snapshot.desired.hosts.items() if name in others)


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
