"""Compute which idle slots a job borrows, and when the job has to give them back.

:func:`borrow` and :func:`reclaim` compute the desired workers after a request of a person or a
program, :func:`overdue` the workers that a leader evicts at the deadline.

A job with borrowed slots has more workers than it needs. For each host the number of borrowed slots
is kept, not which ones. When fewer workers are wanted on a host, its borrowed slots are given back
first. When their owner wants slots back (``reclaim``), workers leave by a planned switch, as after
any `edl scale`. A worker that has not left shortly before the deadline is evicted: then the other
workers repair the ring and go on without it, and no training progress is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from edl.errors import UsageError
from edl.events import ReclaimedDetails
from edl.job.placement import Placement, place_workers
from edl.job.snapshot import Snapshot
from edl.records import Desired, Reclaim, Stage
from edl.text import by_host, counted, verb, workers

# A worker is evicted this long before the deadline, at most: its process needs time to end.
MARGIN_S = 2.0


@dataclass(frozen=True)
class LeaseTerms:
    """Whether a change of the desired size borrows slots, and by when it gives slots back."""

    borrows: bool = False  # the slots of workers that are added; else they are the job's own
    within_s: float | None = None  # by when removed workers must be gone; None: no deadline


NO_LEASE_TERMS = LeaseTerms()


# --- requests to borrow and to give back


def borrow(now: Snapshot, slots: int, host: str | None, desired: Placement) -> dict[str, int]:
    """Return the desired workers by host after workers were added in up to `slots` free slots."""
    name, sizes, np = now.job.name, now.job.sizes, sum(desired.values())
    refusal = f"cannot borrow {counted(slots, 'slot')} for job {name}"
    hosts = [replace(one, slots=one.slots - len(one.disabled)) for one in now.available]
    if host is not None:
        known = ", ".join(one.name for one in hosts) or "none"
        hosts = [one for one in hosts if one.name == host]
        if not hosts:
            raise UsageError(f"{refusal}: nobody offers host {host}; its hosts are {known}")
    free = sum(max(0, one.slots - desired.get(one.name, 0)) for one in hosts)
    if not free:
        where = f"host {host} has" if host is not None else "its hosts have"
        raise UsageError(f"{refusal}: {where} no free slot")
    usable = min(slots, free)
    more = sizes.room(np, usable)
    if not more:
        raise UsageError(f"{refusal}: it has {workers(np)}, and {sizes.refusal(np + usable)}")
    return place_workers(name, np + more, desired, hosts, now.assigned.by_slot)


def reclaim(
    now: Snapshot, slots: int | None, host: str | None, desired: Placement
) -> dict[str, int]:
    """Return the desired workers by host after the job has given back `slots` borrowed slots."""
    job = now.job
    borrowed = borrowed_after(now.desired, desired, NO_LEASE_TERMS)
    here = {name: n for name, n in borrowed.items() if host in (None, name)}
    there, where = sum(here.values()), f" on host {host}" if host is not None else ""
    if not there:
        raise UsageError(f"no slot{where} is borrowed by job {job.name}")
    slots = there if slots is None else slots
    if not 1 <= slots <= there:
        raise UsageError(
            f"cannot take {counted(slots, 'slot')} back from job {job.name}: {there} "
            f"{verb(there)} borrowed by it{where} ({by_host(here)})"
        )
    new, left = dict(desired), slots
    for name in sorted(here, reverse=True):
        taken = min(left, here[name])
        new[name] -= taken
        left -= taken
    size = job.sizes.below(sum(new.values()))
    if size is None:
        raise UsageError(
            f"cannot take {counted(slots, 'slot')} back from job {job.name}: "
            f"{workers(sum(new.values()))} would be left and {job.sizes.refusal(sum(new.values()))}"
            f"; run `edl stop {job.name}`"
        )
    return place_workers(job.name, size, new, now.available, now.assigned.by_slot)


# --- the effect of a change of the desired workers


def borrowed_after(before: Desired, hosts: Placement, terms: LeaseTerms) -> dict[str, int]:
    """Return how many slots of each host the job borrows after a change of its desired workers."""
    borrowed: dict[str, int] = {}
    for host, n in hosts.items():
        more = n - before.hosts.get(host, 0)
        gained = max(0, more) if terms.borrows else 0
        kept = min(n, max(0, before.borrowed.get(host, 0) + min(0, more)))
        if kept + gained:
            borrowed[host] = kept + gained
    return borrowed


def reclaims_after(
    before: Desired, hosts: Placement, terms: LeaseTerms, now_s: float
) -> tuple[Reclaim, ...]:
    """Return the open requests to give slots back after a change, at `now_s` since 1970."""
    fewer = {host: n - hosts.get(host, 0) for host, n in before.hosts.items()}
    # To add workers on a host withdraws the requests there.
    kept = [one for one in before.reclaims if fewer.get(one.host, 0) >= 0]
    if terms.within_s is not None:
        by_s = now_s + terms.within_s
        kept += [Reclaim(host, n, now_s, by_s) for host, n in sorted(fewer.items()) if n > 0]
    return tuple(kept)


# --- the deadline


class ReclaimTracker:
    """For how long one process has seen each demand to give slots back."""

    # No host's clock is compared with another's, so a deadline counts from when the process that
    # judges it first saw the demand: it may be later than asked, but is never earlier.

    def __init__(self) -> None:
        self._since: dict[Reclaim, float] = {}

    def look(self, desired: Desired, now_s: float) -> dict[Reclaim, float]:
        """Return the age of each open demand in seconds, and keep what the next call needs."""
        self._since = {one: self._since.get(one, now_s) for one in desired.reclaims}
        return {one: now_s - since_s for one, since_s in self._since.items()}


def is_late(reclaim: Reclaim, age_s: float) -> bool:
    """Return whether a planned switch might end after a deadline to give slots back."""
    return age_s >= reclaim.within_s - min(MARGIN_S, reclaim.within_s / 2)


def overdue_on(host: str, ages_s: Mapping[Reclaim, float]) -> bool:
    """Return whether a request to give back slots of a host is late."""
    return any(one.host == host and is_late(one, age_s) for one, age_s in ages_s.items())


def overdue(now: Snapshot, ages_s: Mapping[Reclaim, float]) -> dict[int, str]:
    """Return why to evict the workers whose borrowed slots are due to be given back, by id."""
    new = now.generation
    late = [one for one in now.desired.reclaims if is_late(one, ages_s.get(one, 0.0))]
    if new is None or not late:
        return {}
    at = {member.id: member.generation for member in now.members}
    # Until all newcomers have entered, one may not have received the job's state yet.
    come = all(at.get(worker, 0) >= new.number for worker in new.joined)
    leaving = {member.id for member in now.members if member.stage is Stage.LEAVING}
    leaving |= {request.worker for request in now.requests}
    leaving |= {ring_member.id for ring_member in now.ring} - {*new.worker_ids}
    found: dict[int, str] = {}
    for one in late:
        here = [ring_member for ring_member in now.ring if ring_member.host == one.host]
        if now.assigned.by_slot:
            here.sort(key=lambda ring_member: ring_member.slot)
        here.sort(
            key=lambda ring_member: ring_member.id in leaving
        )  # among the others, the highest ranks, or slots, go first
        why = f"its slot was to be given back within {one.within_s:g} s"
        beyond = [ring_member.id for ring_member in here[_allowed(now.desired, one, ages_s) :]]
        found |= dict.fromkeys((w for w in beyond if come or w not in new.worker_ids), why)
    return found


def returned(
    now: Snapshot, ages_s: Mapping[Reclaim, float], host: str | None = None, hidden: int = 0
) -> tuple[Reclaim, ...]:
    """Return the open requests to give slots back that are fulfilled."""
    # An agent asks for its `host`, with the number of worker processes there that ZooKeeper does
    # not list; the leader asks for the hosts without an agent.
    agents = {one.name for one in now.hosts}
    there = {(m.host, m.id) for m in now.members} | {(s.host, s.id) for s in now.ring}
    here = Counter(name for name, _ in there)
    return tuple(
        one
        for one in now.desired.reclaims
        if (one.host not in agents if host is None else one.host == host)
        and here[one.host] + hidden <= _allowed(now.desired, one, ages_s)
    )


def _allowed(desired: Desired, reclaim: Reclaim, ages_s: Mapping[Reclaim, float]) -> int:
    """Return how many workers a host may have at the deadline of a request to give slots back."""
    left_s = {one: one.within_s - ages_s.get(one, 0.0) for one in desired.reclaims}
    later = (one for one in desired.reclaims if left_s[one] > left_s[reclaim])
    leave_later = sum(one.slots for one in later if one.host == reclaim.host)
    return desired.hosts.get(reclaim.host, 0) + leave_later


def describe_returned(one: Reclaim, after_s: float) -> tuple[ReclaimedDetails, str]:
    """Return the details and the sentence of the event that slots were given back."""
    within_s = one.within_s
    late = f", later than the {within_s:g} s that were left" if after_s > within_s else ""
    have = verb(one.slots, "was", "were")
    text = (
        f"{counted(one.slots, 'slot')} of host {one.host} {have} given back after {after_s:.1f} s"
    )
    details = ReclaimedDetails(one.host, one.slots, round(after_s, 3), round(within_s, 3))
    return details, text + late


def without_reclaimed(desired: Desired, done: Collection[Reclaim]) -> Desired:
    """Return a copy of `desired` without the open requests `done`, which are fulfilled."""
    return replace(desired, reclaims=tuple(one for one in desired.reclaims if one not in done))
