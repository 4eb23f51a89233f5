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
    """The reason why a worker may leave the ring.

    ``SIGNAL``: it got SIGTERM. ``DRAIN``: a request to drain or to replace it was accepted.
    ``UNASSIGNED``: its host has more workers than are assigned to it, no worker is assigned to its
    slot any more, or the job may not use its device any more. When the ring needs some of its
    leaving workers for longer, an ``UNASSIGNED`` one is kept first, a ``SIGNAL`` one last.
    """

    SIGNAL = "it was sent SIGTERM"
    DRAIN = "its drain was accepted"
    UNASSIGNED = "no worker is assigned to where it is"


@dataclass(frozen=True)
class Departure:
    """A worker that may leave the ring, and what its departure changes.

    Attributes:
        id: the worker's id.
        host: the worker's host.
        why: the reason why the worker may leave.
        share: by how much the number of workers wanted on ``host`` falls when the worker has left:
            0 or 1.
        must: whether the worker leaves with the next switch, however small the ring is then; if
            False it may be kept until the ring can do without it.
        refilled: whether the launcher starts another worker in the slot, once this one has left and
            not before.
    """

    id: int
    host: str
    why: DepartureCause
    share: int = 0
    must: bool = False
    refilled: bool = False

    @property
    def moves(self) -> bool:
        """Whether another worker is to take the place of this one, which stays until then.

        It is True for ``UNASSIGNED`` and for a replacement, False for a drain and for SIGTERM.
        """
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
    """Find the workers of a ring that may leave, and answer the open requests to drain or replace.

    Nothing is written to ZooKeeper.

    Args:
        now: the state of the job in ZooKeeper.
        active: the members of the ring, in rank order.
        healthy: the workers that are alive and have a session, by id; all of ``active`` are among
            them.
        ages: how long each worker has been in its stage, in seconds.
        limits: the leader's time limits.

    Returns:
        the pair (the requests, each with its answer; the departures, in the order in which the
        workers should leave: workers that got SIGTERM, drained or replaced ones, then workers to
        which no place is assigned).
    """
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
    return answers, (*leavers, *_unassigned(active, leaving, assigned, by_slot, revoked))


def gather_departures(
    now: Snapshot,
    active: Sequence[RingMember],
    leavers: Collection[Departure],
    leaving: Collection[Departure],
    ages: Ages,
    limits: Limits,
) -> tuple[str, float] | None:
    """Decide whether workers that got SIGTERM wait for other workers of their hosts to get it, too.

    An engine that takes a host away may signal each of its processes. The workers note that one
    after another, and without a wait each of them would leave in a switch of its own. They wait
    until all workers of their hosts are to leave, for ``limits.leave_gather_s`` seconds at most. A
    switch that has another cause takes them along.

    Args:
        now: the state of the job in ZooKeeper.
        active: the members of the ring.
        leavers: the departures of all workers that may leave.
        leaving: the departures that would happen with a switch now, in which no worker joins.
        ages: how long each worker has been in its stage, in seconds.
        limits: the leader's time limits.

    Returns:
        the pair (the reason to wait, as a sentence; the seconds after which the wait is over at the
        latest); None if the switch need not wait.
    """
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
    """Return whether the departure ``one`` may wait for other workers of its host to get SIGTERM.

    It may not if ``limits.leave_gather_s`` seconds are over, if it is not due to SIGTERM, or if the
    number of workers wanted on the host has been lowered already, with or without a deadline: then
    it is known who else is to leave. Nor may it if another worker takes its place, as where the
    launcher assigns workers by slot.

    Args:
        now: the state of the job in ZooKeeper.
        one: the departure.
        ages: how long each worker has been in its stage, in seconds.
        limits: the leader's time limits.
    """
    if one.why is not DepartureCause.SIGNAL or one.must or not one.share:
        return False
    if any(reclaim.host == one.host for reclaim in now.desired.reclaims):
        return False
    return ages.stage_s.get(one.id, 0.0) < limits.leave_gather_s


def without_departed(assigned: Placement, leavers: Collection[Departure]) -> dict[str, int]:
    """Return a copy of ``assigned`` (workers by host) after the departures ``leavers``.

    Args:
        assigned: the number of assigned workers by host before.
        leavers: the departures; each lowers the number of its host by its ``share``, 0 or 1.
    """
    lowered = dict(assigned)
    for one in leavers:
        if one.share:
            lowered[one.host] = lowered.get(one.host, 0) - one.share
    return lowered


def _drained(
    now: Snapshot, active: Sequence[RingMember]
) -> tuple[tuple[Request, ...], tuple[Departure, ...]]:
    """Return the answers to all open requests to drain or replace workers, and who leaves by them.

    A request is refused if its kind is unknown here, if its worker is not in the ring or leaves by
    an earlier request, if the launcher assigns by slot, or if without a drained worker too few
    would train or the job may not have that size. An accepted drain lowers the number of workers
    assigned to its host by one, unless that is 0 already. A replacement does not lower it.

    Args:
        now: the state of the job in ZooKeeper.
        active: the members of the ring, in rank order.

    Returns:
        the pair (the requests, each with its answer; the departures of the workers whose requests
        were accepted, in the order of the requests).
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
            drained[member.id] = Departure(member.id, member.host, DepartureCause.DRAIN)
        elif why := _why_not(now, member, assigned, left):
            accepted, outcome = False, f"cannot drain w{member.id}: {why}"
        else:
            accepted, outcome = True, f"w{member.id} leaves with the next switch"
            share = min(1, assigned.get(member.host, 0))
            drained[member.id] = Departure(member.id, member.host, DepartureCause.DRAIN, share)
            assigned[member.host] = assigned.get(member.host, 0) - share
        answers.append(replace(request, done=True, accepted=accepted, outcome=outcome))
    return tuple(answers), tuple(drained.values())


def attainable_size(now: Snapshot, active: Sequence[RingMember], assigned: Placement) -> int:
    """Return how many of the ``assigned`` workers are in the ring or can be started, on all hosts.

    On a host without an agent no worker can be started, unless the launcher assigns by slot.

    Args:
        now: the state of the job in ZooKeeper.
        active: the members of the ring.
        assigned: the number of assigned workers by host.
    """
    return sum(attainable(now, active, assigned).values())


def attainable(now: Snapshot, active: Sequence[RingMember], assigned: Placement) -> dict[str, int]:
    """Return by host how many of the ``assigned`` workers are in the ring or can be started.

    On a host without an agent (it may have died) no worker can be started, so its number is at most
    that of its ring members. If the launcher assigns by slot, all assigned workers can be started.

    Args:
        now: the state of the job in ZooKeeper.
        active: the members of the ring.
        assigned: the number of assigned workers by host.
    """
    if now.assigned.by_slot:
        return dict(assigned)
    agents, here = {host.name for host in now.hosts}, Counter(member.host for member in active)
    return {host: n if host in agents else min(n, here[host]) for host, n in assigned.items()}


def _why_not(now: Snapshot, member: RingMember, assigned: Placement, left: int) -> str:
    """Return a clause that says why a worker cannot be drained; empty if it can.

    It cannot if fewer than ``min_np`` workers would train or be wanted, or if the job may not have
    the smaller number of workers.

    Args:
        now: the state of the job in ZooKeeper.
        member: the worker that is to leave for good.
        assigned: the number of assigned workers by host, from which the workers that are drained
            already are subtracted.
        left: the size of the ring without the workers that are drained already.
    """
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
    """Decide for which workers that got SIGTERM the wanted number falls, so none replaces them.

    The departure of such a worker lowers the number of workers that are wanted on its host by one.
    That number stays where the host has more workers than are wanted anyway, and where the job may
    not have the smaller size: then a replacement is needed. It is lowered for as many of the
    workers as possible.

    Args:
        now: the state of the job in ZooKeeper.
        assigned: the number of assigned workers by host, from which the workers of ``drained`` that
            are not replaced are subtracted already (:func:`without_departed`).
        active: the members of the ring, those of ``drained`` included.
        asked: the members that got SIGTERM, none of them in ``drained``.
        drained: the ids of the members that leave because of a request.

    Returns:
        for each of ``asked``, by worker id: 1 if the number falls with its departure, else 0. An
        empty dict means 0 for all.
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
    active: Sequence[RingMember],
    leaving: Collection[int],
    assigned: Placement,
    by_slot: bool,
    revoked: Collection[int] = (),
) -> tuple[Departure, ...]:
    """Return the departures of the workers beyond the number that is assigned to their host.

    The workers in ``revoked`` come first, then the others host by host, by name.

    Args:
        active: the members of the ring, in rank order.
        leaving: the ids of workers that leave for another reason; they are left out.
        assigned: the number of assigned workers by host, from which the workers of ``leaving`` that
            are not replaced are subtracted already.
        by_slot: whether the launcher assigns by slot: then the workers in slots beyond the assigned
            ones leave. Otherwise the highest ranks of a host leave.
        revoked: the ids of the workers on devices that the job may not use any more: they leave,
            too, and do not count toward the number.
    """
    here_by_host: dict[str, list[RingMember]] = defaultdict(list)
    unwanted: list[RingMember] = []
    for member in active:
        if member.id not in leaving:
            (unwanted if member.id in revoked else here_by_host[member.host]).append(member)
    for host, here in sorted(here_by_host.items()):
        wanted = assigned.get(host, 0)
        unwanted += [s for s in here if s.slot >= wanted] if by_slot else here[wanted:]
    return tuple(
        Departure(member.id, member.host, DepartureCause.UNASSIGNED) for member in unwanted
    )


def _impatient(member: Member, ages: Ages, limits: Limits) -> bool:
    """Return whether a worker that got SIGTERM cannot wait for its replacement any longer.

    It may wait until ``limits.leave_grace_s`` seconds after the present leader first saw that it
    got SIGTERM.

    Args:
        member: the record of the worker.
        ages: how long each worker has been in its stage, in seconds.
        limits: the leader's time limits.
    """
    return ages.stage_s.get(member.id, 0.0) >= limits.leave_grace_s
