"""Compute who may leave and who may join a ring that trains, and which size it has then.

:mod:`edl.job.membership` decides the switch; it asks here for the arithmetic, in five steps. A
worker that got SIGTERM or was drained is not replaced: the number of desired workers falls by one
with the switch in which it leaves. There are three exceptions. If its host has more workers than
are assigned to it, the number stays. If the smaller number is not an allowed size of the job,
another worker takes the place. If the launcher assigns workers by slot, it starts another worker in
the slot, and the number stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from edl.job.decision import Limits
from edl.job.liveness import Ages
from edl.job.placement import Placement, place_workers
from edl.job.snapshot import Snapshot
from edl.records import Generation, Member, Request, RequestKind, RingMember, Stage
from edl.text import names, verb, workers, workers_train

# --- 1. the numbers


def attainable(
    snapshot: Snapshot, active: Sequence[RingMember], assigned: Placement
) -> dict[str, int]:
    if snapshot.assigned.by_slot:
        return dict(assigned)
    # On a host without an agent, which may have died, nobody can start a worker.
    agents, here = {host.name for host in snapshot.hosts}, Counter(m.host for m in active)
    return {host: n if host in agents else min(n, here[host]) for host, n in assigned.items()}


def with_allowed_size(
    snapshot: Snapshot, active: Sequence[RingMember], ages: Ages, limits: Limits
) -> Snapshot:
    sizes, assigned, left = snapshot.job.sizes, snapshot.assigned, len(active)
    # A launcher that assigns slots fills them again.
    if assigned.by_slot:
        return snapshot
    # The size is allowed, or as many are assigned, or the job may have no smaller size.
    size = sizes.below(left)
    if size is None or left in (size, assigned.np):
        return snapshot
    # An agent can start the workers that are lacking, or a host may still come back.
    attained = attainable(snapshot, active, assigned.hosts)
    if sum(attained.values()) != left or ages.generation_s < limits.start_s:
        return snapshot
    hosts = place_workers(snapshot.job.name, size, attained, snapshot.agents)
    return replace(snapshot, assigned=replace(assigned, hosts=hosts))


# --- 2. who may leave


class DepartureCause(Enum):
    """Why a worker may leave the ring."""

    SIGNAL = "it was sent SIGTERM"
    DRAIN = "its drain was accepted"  # or its replacement
    UNASSIGNED = "no worker is assigned to where it is"


@dataclass(frozen=True)
class Departure:
    id: int
    host: str
    cause: DepartureCause
    share: int = 0  # by how much the number wanted on `host` falls when it has left: 0 or 1
    must: bool = False  # it leaves with the next switch, however small the ring is then
    refilled: bool = False  # the launcher starts another one in its slot, but not before it left

    @property
    def moves(self) -> bool:
        """Whether another worker is to take the place of this one, which stays until then."""
        return self.cause is DepartureCause.UNASSIGNED or (
            self.cause is DepartureCause.DRAIN and self.share == 0
        )


def workers_to_leave(
    snapshot: Snapshot,
    active: Sequence[RingMember],
    healthy: Mapping[int, Member],
    ages: Ages,
    limits: Limits,
) -> tuple[tuple[Request, ...], tuple[Departure, ...]]:
    """Answer the open requests, and return who may leave, in the order in which they should."""
    by_slot = snapshot.assigned.by_slot
    answers, drained = _drained(snapshot, active)
    leaving = {departure.id for departure in drained}
    asked = [m for m in active if healthy[m.id].stage is Stage.LEAVING and m.id not in leaving]
    shares = {} if by_slot else _shares(snapshot, active, asked, drained)
    # Nobody is left who could start a replacement: to wait for one would take an engine's patience.
    alone = not snapshot.hosts and not by_slot and len(asked) == len(active)
    signalled = tuple(
        Departure(
            *(m.id, m.host, DepartureCause.SIGNAL, shares.get(m.id, 0)),
            must=alone or ages.stage_s.get(m.id, 0.0) >= limits.leave_grace_s,
            refilled=by_slot,
        )
        for m in asked
    )
    leaving |= {member.id for member in asked}
    assigned = without_leaving(snapshot.assigned.hosts, (*drained, *signalled))
    # A worker on a device that the job may not use any more counts for no host.
    staying = [member for member in active if member.id not in leaving]
    unwanted = [
        m for m in staying if not snapshot.assigned.grants(m.host, healthy[m.id].used_device)
    ]
    for host in sorted({member.host for member in staying}):
        here = [m for m in staying if m.host == host and m not in unwanted]
        wanted = assigned.get(host, 0)
        # The workers in slots beyond the assigned ones, else the highest ranks of the host.
        unwanted += [m for m in here if m.slot >= wanted] if by_slot else here[wanted:]
    unassigned = (
        Departure(member.id, member.host, DepartureCause.UNASSIGNED) for member in unwanted
    )
    return answers, (*signalled, *drained, *unassigned)


def without_leaving(assigned: Placement, departures: Collection[Departure]) -> dict[str, int]:
    lowered = dict(assigned)
    for departure in departures:
        if departure.share:
            lowered[departure.host] = lowered.get(departure.host, 0) - departure.share
    return lowered


def assigned_without_signalled(snapshot: Snapshot) -> Placement:
    signalled = {member.id for member in snapshot.members if member.stage is Stage.LEAVING}
    lowered = dict(snapshot.assigned.hosts)
    if snapshot.generation is None or snapshot.assigned.by_slot or not signalled:
        return lowered
    active = snapshot.generation.members
    _, drained = _drained(snapshot, active)
    signalled -= {departure.id for departure in drained}
    asked = [member for member in active if member.id in signalled]
    shares = _shares(snapshot, active, asked, drained)
    for member in asked:
        lowered[member.host] -= shares.get(member.id, 0)
    return lowered


def _drained(
    snapshot: Snapshot, active: Sequence[RingMember]
) -> tuple[tuple[Request, ...], tuple[Departure, ...]]:
    sizes, assigned = snapshot.job.sizes, dict(snapshot.assigned.hosts)
    answers: list[Request] = []
    drained: dict[int, Departure] = {}
    for request in snapshot.requests:
        member = next((member for member in active if member.id == request.worker), None)
        left, np = len(active) - len(drained), sum(assigned.values())
        wanted = f"{workers_train(left)}, {np} {verb(np)} wanted"
        refusal = ""
        if request.kind not in (*RequestKind,):
            refusal = f"this leader does not know requests of kind {request.kind!r}"
        elif snapshot.assigned.by_slot:
            refusal = (
                f"cannot {request.kind} w{request.worker}: its launcher, horovodrun, would start "
                "another in its slot; use `edl scale`"
            )
        elif member is None or member.id in drained:
            refusal = f"w{request.worker} is not training in this job"
        elif request.kind == RequestKind.REPLACE:
            drained[member.id] = Departure(member.id, member.host, DepartureCause.DRAIN)
        # Its host may have more workers than assigned, so the number may stay.
        elif not sizes.enough(min(np, left) - 1):
            refusal = f"{wanted} and min_np is {sizes.min_np}; scale out first"
            refusal = f"cannot drain w{member.id}: {refusal}"
        elif (share := min(1, assigned.get(member.host, 0))) and not sizes.allows(np - 1):
            refusal = f"{wanted}; without it {np - 1} would be, and {sizes.refusal(np - 1)}"
            refusal = f"cannot drain w{member.id}: {refusal}"
        else:
            drained[member.id] = Departure(member.id, member.host, DepartureCause.DRAIN, share)
            assigned[member.host] = assigned.get(member.host, 0) - share
        happens = "is replaced" if request.kind == RequestKind.REPLACE else "leaves"
        outcome = refusal or f"w{request.worker} {happens} with the next switch"
        answers.append(replace(request, done=True, accepted=not refusal, outcome=outcome))
    return tuple(answers), tuple(drained.values())


def _shares(
    snapshot: Snapshot,
    active: Sequence[RingMember],
    asked: Sequence[RingMember],
    drained: Collection[Departure],
) -> dict[int, int]:
    """Decide for which workers that got SIGTERM the wanted number falls, so none replaces them."""
    sizes, leaving = snapshot.job.sizes, {departure.id for departure in drained}
    # It falls for as many as the job's sizes allow; the others need a replacement.
    for most in range(len(asked), 0, -1):
        lower = without_leaving(snapshot.assigned.hosts, drained)
        shares = dict.fromkeys((member.id for member in asked), 0)
        staying = Counter(member.host for member in active if member.id not in leaving)
        for member in asked:
            host = member.host
            # A host with more workers than are wanted keeps its number.
            surplus = staying[host] > lower.get(host, 0)
            if not surplus and lower.get(host, 0) > 0 and sum(shares.values()) < most:
                shares[member.id] = 1
                lower[host] -= 1
            staying[host] -= 1
        stay = [member for member in active if not shares.get(member.id)]
        attained = sum(attainable(snapshot, stay, lower).values())
        if sizes.allows(sum(lower.values())) and sizes.enough(attained):
            return shares
    return {}  # 0 for all


# --- 3. who may join


@dataclass(frozen=True)
class Newcomers:
    ready: tuple[int, ...]  # the ids of those that may join with the next switch
    coming: tuple[int, ...]  # the ids of those that are expected to become ready
    evict: Mapping[int, str]  # the reason, by worker id
    ready_s: float  # the longest time for which one of `ready` has been ready; 0.0: none is


def sort_newcomers(
    arriving: Sequence[Member],
    snapshot: Snapshot,
    current: Generation,
    departures: Sequence[Departure],
    silent: Collection[int],
    ages: Ages,
    limits: Limits,
) -> Newcomers:
    assigned = without_leaving(snapshot.assigned.hosts, departures)
    # A newcomer may join once it has noted the newest generation in its record, if it is ready for
    # the latest call of Keras' `fit`.
    fits = max((m.fits for m in arriving if m.stage is Stage.READY), default=0)
    unaware = {m.id for m in arriving if m.newest_generation < current.number or m.fits < fits}
    able = {m.id for m in arriving if m.stage is Stage.READY}.difference(unaware, silent)
    evict: dict[int, str] = {}
    placed = []
    for member in sorted(arriving, key=lambda m: m.id):
        if snapshot.assigned.by_slot and member.slot >= assigned.get(member.host, 0):
            evict[member.id] = "its launcher has taken back its slot"
        else:
            placed.append(member)
    ready: list[int] = []
    coming: list[int] = []
    lacking = _lacking(current.members, departures, assigned)
    for member in sorted(placed, key=lambda m: (m.host, m.id not in able, m.id)):
        # A host has as many workers as are assigned to it; who is able to join goes first.
        if lacking[member.host] <= 0:
            wanted = assigned.get(member.host, 0)
            evict[member.id] = f"host {member.host} has the {workers(wanted)} wanted there"
            continue
        lacking[member.host] -= 1
        ignored_s = min(ages.generation_s, ages.stage_s.get(member.id, 0.0))
        if is_stuck(member, ages, limits):
            evict[member.id] = f"it was not ready after {limits.prepare_s:g} s"
        # The others had to go on without it, so it may be frozen.
        elif member.stage is Stage.READY and member.id in unaware and ignored_s >= limits.notice_s:
            evict[member.id] = (
                f"it was ready and takes no note of what goes on for {limits.notice_s:g} s"
            )
        else:
            (ready if member.id in able else coming).append(member.id)
    ready_s = max((ages.stage_s.get(worker, 0.0) for worker in ready), default=0.0)
    return Newcomers(tuple(ready), tuple(coming), evict, ready_s)


def is_stuck(member: Member, ages: Ages, limits: Limits) -> bool:
    age = ages.stage_s.get(member.id, 0.0)
    return member.stage is Stage.PREPARING and age >= limits.prepare_s


def _lacking(
    active: Sequence[RingMember], departures: Sequence[Departure], assigned: Placement
) -> Counter[str]:
    leaving = {departure.id for departure in departures}
    lacking = Counter(dict(assigned))
    lacking.subtract(member.host for member in active if member.id not in leaving)
    return lacking


# --- 4. the size, and who stays longer for it

# All leave, so one must stay to send the state to the newcomers: the first of these.
_STATE_SOURCES = (DepartureCause.UNASSIGNED, DepartureCause.DRAIN, DepartureCause.SIGNAL)


@dataclass(frozen=True)
class Target:
    joining: tuple[int, ...]  # worker ids
    leaving: tuple[Departure, ...]
    postponed: tuple[Departure, ...]  # put off, so that the ring keeps enough workers

    @property
    def postponed_ids(self) -> tuple[int, ...]:
        return tuple(sorted(departure.id for departure in self.postponed))


def choose_target(
    snapshot: Snapshot,
    active: Sequence[RingMember],
    departures: Sequence[Departure],
    ready: Sequence[int],
) -> Target:
    """Choose the ring after the switch: the largest that postpones the fewest departures."""
    # In the order in which they are postponed: first workers that wait for a replacement, then
    # drained ones, then those that got SIGTERM.
    order = [departure for departure in departures[::-1] if departure.moves]
    order += [departure for departure in departures[::-1] if not departure.moves]
    if departures and len(departures) == len(active):
        ranks = {member.id: rank for rank, member in enumerate(active)}
        first = min(order, key=lambda one: (_STATE_SOURCES.index(one.cause), ranks[one.id]))
        order = [first, *(departure for departure in order if departure is not first)]
    # A worker has to bring the state into a new ring; that one goes with the next switch.
    source = order[:1] if ready and len(departures) == len(active) else []
    can_wait = [departure for departure in order if not departure.must and departure not in source]
    for count in range(len(can_wait) + 1):
        postponed = [*source, *can_wait[:count]]
        leaving = [departure for departure in departures if departure not in postponed]
        for joined in range(len(ready), -1, -1):
            size = len(active) - len(leaving) + joined
            # A ring of one has two for the switch in which its only worker is replaced.
            doubles = bool(source) and joined == len(active) == 1
            # Besides the changes that the job's sizes allow, a ring may shrink to the assigned
            # number, and to any number for a moment if the launcher refills a slot.
            train, assigned = len(active), without_leaving(snapshot.assigned.hosts, leaving)
            allowed = snapshot.job.sizes.keeps(size, train)
            allowed |= size == sum(assigned.values()) < train
            allowed |= doubles or any(departure.refilled for departure in leaving)
            if allowed and size >= _least(snapshot, active, leaving):
                return Target(tuple(ready[:joined]), tuple(leaving), tuple(postponed))
    # No size is allowed: only the workers leave that must, and at most as many newcomers join.
    leaving = [departure for departure in departures if departure.must and departure not in source]
    joined = min(len(ready), len(leaving))
    return Target(tuple(ready[:joined]), tuple(leaving), (*source, *can_wait))


def _least(snapshot: Snapshot, active: Sequence[RingMember], leaving: Sequence[Departure]) -> int:
    # All must leave, whatever the size.
    if all(departure.must for departure in leaving):
        return 0
    # One that waits for a replacement leaves the wanted size, even if no agent can start the other.
    # One that was asked to leave does not wait for workers that nobody can start.
    wanted: Placement = without_leaving(snapshot.assigned.hosts, leaving)
    if not any(departure.moves for departure in leaving):
        wanted = attainable(snapshot, active, wanted)
    refilled, sizes = sum(departure.refilled for departure in leaving), snapshot.job.sizes
    return min(len(active), max(sizes.fit(sum(wanted.values())) - refilled, sizes.min_np))


# --- 5. whether it is worth to wait


def await_replacements(
    snapshot: Snapshot,
    active: Sequence[RingMember],
    departures: Sequence[Departure],
    target: Target,
    newcomers: Newcomers,
    healthy: Mapping[int, Member],
    limits: Limits,
) -> list[str]:
    """Return for what ready newcomers that replace others wait: "w5", "2 more of b" (a host)."""
    # No worker waits for its replacement, so nothing is gained.
    if not target.postponed:
        return []
    # A worker that got SIGTERM has little time left.
    if any(healthy[member.id].stage is Stage.LEAVING for member in active):
        return []
    # The ring lacks workers, so training is slower meanwhile.
    assigned = without_leaving(snapshot.assigned.hosts, departures)
    if len(active) < sum(attainable(snapshot, active, assigned).values()):
        return []
    # The last ones had as much time as any newcomer has to become ready.
    if newcomers.ready_s >= limits.prepare_s:
        return []
    lacking = _lacking(active, departures, assigned)
    lacking.subtract(healthy[w].host for w in (*newcomers.ready, *newcomers.coming))
    # An agent starts workers, or under horovodrun an `edl-worker`.
    hosts = {host.name for host in snapshot.hosts} | {slot.host for slot in snapshot.slots}
    more = [f"{lacking[host]} more of {host}" for host in sorted(hosts) if lacking[host] > 0]
    return [f"w{worker}" for worker in newcomers.coming] + more


def await_same_host(
    snapshot: Snapshot,
    active: Sequence[RingMember],
    departures: Collection[Departure],
    leaving: Collection[Departure],  # in a switch now, in which no worker joins
    ages: Ages,
    limits: Limits,
) -> tuple[str, float] | None:
    """Return why, and how many seconds, those with SIGTERM wait for others of their hosts."""
    # Each switch costs a pause, so workers of one host that get SIGTERM at nearly the same time
    # leave in one switch.
    gives_back = {reclaim.host for reclaim in snapshot.desired.reclaims}
    for departure in leaving:
        # Without a share another worker takes its place, as where the launcher assigns by slot.
        if departure.cause is not DepartureCause.SIGNAL or departure.must or not departure.share:
            return None
        # The number wanted there has been lowered already: it is known who else is to leave.
        if departure.host in gives_back:
            return None
    waited_s = max(ages.stage_s.get(departure.id, 0.0) for departure in leaving)
    here = Counter(member.host for member in active)
    asked = Counter(departure.host for departure in departures)
    hosts = sorted({one.host for one in leaving if asked[one.host] < here[one.host]})
    if not hosts or waited_s >= limits.leave_gather_s:
        return None
    so_far = ", ".join(f"{asked[host]} of {here[host]} on {host}" for host in hosts)
    reason = (
        f"{names(sorted(one.id for one in leaving))} {verb(len(leaving), 'leaves', 'leave')} "
        f"within {limits.leave_gather_s:g} s, in one switch with other workers of the same host "
        f"that are asked to leave by then; asked so far: {so_far}"
    )
    return reason, limits.leave_gather_s - waited_s
