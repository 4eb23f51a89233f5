"""Decide which workers may leave a ring that trains, and how the desired number falls with that.

The entry point is :func:`departures_of`. Which of these workers do leave with the next switch is
decided in :mod:`edl.core.job.resize`.

A worker that got SIGTERM or was drained is not replaced: the number of desired workers falls by one
with the switch in which it leaves. There are three exceptions. If its host has more workers than
are assigned to it, the number stays. If the smaller number is not an allowed size of the job,
another worker takes the place. If the launcher assigns workers by slot, it starts another worker in
the slot, and the number stays.

Each switch costs a pause, so workers of one host that get SIGTERM at nearly the same time leave in
one switch: :func:`gather_departures`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from edl.core.job.ages import Ages
from edl.core.job.decision import Limits
from edl.core.job.placement import Placement
from edl.core.plural import names, verb, workers_train
from edl.core.records import Member, Request, RequestKind, RingMember, Stage
from edl.core.snapshot import Snapshot

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
