"""Define a leader's decision about the members of a job, and the time limits of such decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from edl.events import DesiredDetails
from edl.job.borrowing import NO_TERMS, ReclaimTerms, borrowed_after, reclaims_after
from edl.job.placement import NO_DEVICES, DeviceSets, Placement, describe_devices
from edl.records import Assigned, Desired, Generation, Reclaim, Request, RequestedBy
from edl.text import workers

# ------------------------------------------------------------
# Change how many workers a job shall have: the one way for people, launchers and the leader. What
# is wanted (`desired`) and what the launcher is to start (`assigned`) are two records. An agent of
# `edl run` keeps as many workers as are desired, so both change at once, and no reader sees one
# without the other. Where a launcher assigns slots by itself, only `desired` changes.


@dataclass(frozen=True)
class DesiredChange:
    """A change of the desired workers of a job; `bool(change)` is False if nothing changes."""

    before: Desired
    desired: Desired
    assigned: Assigned | None = None  # None: it stays, or the launcher assigns by itself
    assigned_before: Assigned | None = None
    devices: str = ""  # the changed devices by host, as a clause for the event's sentence

    def __bool__(self) -> bool:
        return self.desired != self.before

    @property
    def moves(self) -> bool:
        return dict(self.desired.hosts) != dict(self.before.hosts)

    def starts_from(self, desired: Desired, assigned: Assigned) -> bool:
        return desired == self.before and self.assigned_before in (None, assigned)

    def at(self, at_s: float) -> DesiredChange:
        return replace(self, desired=replace(self.desired, at_s=at_s))

    @property
    def details(self) -> DesiredDetails:
        before, after = dict(self.before.hosts), dict(self.desired.hosts)
        return DesiredDetails(str(self.desired.by), before, after)

    def __str__(self) -> str:  # "edl scale: 2 -> 3 workers wanted (b: 0 -> 1)"
        before, after = self.before.hosts, self.desired.hosts
        where = ", ".join(
            f"{host}: {before.get(host, 0)} -> {after.get(host, 0)}"
            for host in sorted({*before, *after})
            if before.get(host, 0) != after.get(host, 0)
        )
        now, np = self.desired.reason, self.desired.np
        size = f"{self.before.np} -> {workers(np)}" if np != self.before.np else workers(np)
        details = "; ".join(filter(None, (where, self.devices)))
        return f"{now}: {size} wanted" + (f" ({details})" if details else "")


def set_desired(
    before: Desired,
    assigned: Assigned,
    hosts: Placement,
    by: RequestedBy,
    reason: str,
    at_s: float = 0.0,  # since 1970; requests to give slots back count from it
    terms: ReclaimTerms = NO_TERMS,
    devices: DeviceSets = NO_DEVICES,
) -> DesiredChange:
    """Return the change that makes `hosts` the desired workers; nothing is written to ZooKeeper."""
    granted = {**assigned.devices, **devices}
    if dict(hosts) == dict(before.hosts) and granted == dict(assigned.devices):
        return DesiredChange(before, before)
    profiled = by is RequestedBy.PROFILE  # a profile restores the size afterwards
    borrowed = before.borrowed if profiled else borrowed_after(before, hosts, terms)
    reclaims = reclaims_after(before, hosts, terms, at_s)
    after = Desired(dict(hosts), by, reason, at_s, borrowed, reclaims, before.batch)
    if assigned.by_slot:
        return DesiredChange(before, after)
    follows = replace(assigned, hosts=after.hosts, devices=granted)
    changed = {host: new for host, new in granted.items() if assigned.devices.get(host) != new}
    return DesiredChange(before, after, follows, assigned, describe_devices(changed))


@dataclass(frozen=True)
class Limits:
    start_s: float  # the first ring of a job waits for all `np` workers; then `min_np` are enough
    prepare_s: float  # from a newcomer's registration until it is ready
    # Ready newcomers wait so long for others that are preparing, and a new leader for agents of
    # hosts that have none, before it starts a job again after the death of all its workers.
    gather_s: float
    leave_grace_s: float  # a worker with SIGTERM that is still needed waits for its replacement
    notice_s: float  # a ready newcomer notes in its record that it has seen a generation
    report_s: float  # a worker reports that its ring broke; else it is evicted, if that is safe
    leave_gather_s: float  # a worker with SIGTERM waits for others of its host to get it, too


@dataclass(frozen=True)
class MembershipDecision:
    reason: str  # always set, also if there is nothing to do
    generation: Generation | None = None  # the next generation; None: the newest one stays
    change: DesiredChange | None = None
    evict: Mapping[int, str] = field(default_factory=dict)  # the reason, by worker id
    answers: tuple[Request, ...] = ()  # requests with their answers
    asks: tuple[Request, ...] = ()  # new requests of the leader, which a later decision answers
    reclaimed: tuple[Reclaim, ...] = ()  # fulfilled; `change` removes them from the open ones
    again_s: float | None = None  # when a time limit is over; None: decide as often as usual
    # The ids of evicted workers that must have a record in ZooKeeper still: without it they have
    # left as agreed, and the decision is not carried out.
    registered: frozenset[int] = frozenset()

    @property
    def acts(self) -> bool:
        changes = self.generation or self.change or self.evict or self.reclaimed
        return bool(changes or self.answers or self.asks)
