"""Who may leave a ring that trains, and why; and what is wanted when they have left.

Whom a signal asks to leave and whom a request does is wanted no longer, so fewer are desired with
the switch in which they leave; not where they are wanted elsewhere anyway, nor where the job may
not have that many: then somebody has to take their places. A launcher that assigns by slot puts
another one in the place of each, so nothing changes in what it has assigned.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from edl.core.job.ages import Ages
from edl.core.job.decision import Limits
from edl.core.job.placement import Placement
from edl.core.plural import verb, workers_train
from edl.core.records import Member, Request, RequestKind, RingMember, Snapshot, Stage


class Why(Enum):
    """Why a worker may leave. Those further down stay first when the ring needs them."""

    SIGNAL = "it was sent SIGTERM"
    DRAIN = "its drain was accepted"
    UNASSIGNED = "no worker is assigned to where it is"


@dataclass(frozen=True)
class Departure:
    """A worker that may leave.

    Attributes:
        share: how many workers fewer are wanted on ``host`` once it has left.
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
        return self.why is Why.UNASSIGNED or (self.why is Why.DRAIN and self.share == 0)


def departures_of(
    now: Snapshot,
    active: Sequence[RingMember],
    healthy: Mapping[int, Member],
    ages: Ages,
    limits: Limits,
) -> tuple[tuple[Request, ...], tuple[Departure, ...]]:
    """The answers to the open requests, and all who may leave: first who should go first."""
    by_slot = now.assigned.by_slot
    answers, drained = _drained(now, active)
    gone = {one.id for one in drained}
    assigned = without(now.assigned.hosts, drained)
    asked = [s for s in active if healthy[s.id].stage is Stage.LEAVING and s.id not in gone]
    shares = {} if by_slot else _shares(now, assigned, active, asked, gone)
    signalled = tuple(
        Departure(
            *(s.id, s.host, Why.SIGNAL, shares.get(s.id, 0)),
            must=_impatient(healthy[s.id], ages, limits),
            refilled=by_slot,
        )
        for s in asked
    )
    leavers = (*signalled, *drained)
    assigned = without(assigned, signalled)
    return answers, (*leavers, *_unassigned(active, {one.id for one in leavers}, assigned, by_slot))


def without(assigned: Placement, leavers: Collection[Departure]) -> dict[str, int]:
    """What is assigned when they have left."""
    lowered = dict(assigned)
    for one in leavers:
        if one.share:
            lowered[one.host] = lowered.get(one.host, 0) - one.share
    return lowered


def _drained(
    now: Snapshot, active: Sequence[RingMember]
) -> tuple[tuple[Request, ...], tuple[Departure, ...]]:
    """Answer the open requests; each accepted drain leaves its host one worker fewer.

    Not where nobody is wanted on that host anyway.
    """
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
            drained[member.id] = Departure(member.id, member.host, Why.DRAIN)
        elif why := _why_not(now, member, assigned, left):
            accepted, outcome = False, f"cannot drain w{member.id}: {why}"
        else:
            accepted, outcome = True, f"w{member.id} leaves with the next switch"
            share = min(1, assigned.get(member.host, 0))
            drained[member.id] = Departure(member.id, member.host, Why.DRAIN, share)
            assigned[member.host] = assigned.get(member.host, 0) - share
        answers.append(replace(request, done=True, accepted=accepted, outcome=outcome))
    return tuple(answers), tuple(drained.values())


def attainable_size(now: Snapshot, active: Sequence[RingMember], assigned: Placement) -> int:
    """How many workers :func:`attainable` are."""
    return sum(attainable(now, active, assigned).values())


def attainable(now: Snapshot, active: Sequence[RingMember], assigned: Placement) -> dict[str, int]:
    """Those of the ``assigned`` workers that are there, or can be started by somebody.

    Nobody can on a host without an agent: perhaps it has died, and its workers are still wanted.
    """
    if now.assigned.by_slot:
        return dict(assigned)
    agents, here = {host.name for host in now.hosts}, Counter(member.host for member in active)
    return {host: n if host in agents else min(n, here[host]) for host, n in assigned.items()}


def _why_not(now: Snapshot, member: RingMember, assigned: Placement, left: int) -> str:
    """Why a worker of the ``left`` ones cannot leave for good; empty: it can."""
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
    drained: Collection[int],
) -> dict[int, int]:
    """How many workers fewer are wanted on its host for each who was ``asked`` by a signal.

    One, unless fewer are wanted there anyway, or the job may not have that many: then a replacement
    is needed. One fewer for as many of them as may be.
    """
    sizes = now.job.sizes
    for most in range(len(asked), 0, -1):
        lower, shares = dict(assigned), dict.fromkeys((member.id for member in asked), 0)
        staying = Counter(member.host for member in active if member.id not in drained)
        for member in asked:
            host = member.host
            surplus = staying[host] > lower.get(host, 0)
            if not surplus and lower.get(host, 0) > 0 and sum(shares.values()) < most:
                shares[member.id] = 1
                lower[host] -= 1
            staying[host] -= 1
        attainable = attainable_size(now, [s for s in active if not shares.get(s.id)], lower)
        if sizes.allows(sum(lower.values())) and sizes.enough(attainable):
            return shares
    return {}


def _unassigned(
    active: Sequence[RingMember], leaving: Collection[int], assigned: Placement, by_slot: bool
) -> tuple[Departure, ...]:
    """Who is more than are assigned: the highest ranks of a host, or whose slot is beyond."""
    here_by_host: dict[str, list[RingMember]] = defaultdict(list)
    for member in active:
        if member.id not in leaving:
            here_by_host[member.host].append(member)
    unwanted: list[RingMember] = []
    for host, here in sorted(here_by_host.items()):
        wanted = assigned.get(host, 0)
        unwanted += [s for s in here if s.slot >= wanted] if by_slot else here[wanted:]
    return tuple(Departure(member.id, member.host, Why.UNASSIGNED) for member in unwanted)


def _impatient(member: Member, ages: Ages, limits: Limits) -> bool:
    """Whether who was sent SIGTERM has waited for its replacement for as long as it can."""
    return ages.stage_s.get(member.id, 0.0) >= limits.leave_grace_s
