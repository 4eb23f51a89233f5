"""Compute which idle slots a job borrows, and when the job has to give them back.

For each host the number of borrowed slots is kept, not which ones; when fewer workers are wanted
there, these go first. When their owner wants slots back, workers leave by a planned switch. One
that has not left shortly before the deadline is evicted: the others repair the ring, and no
progress is lost.
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
class ReclaimTerms:
    """Whether a change of the desired size borrows slots, and by when it gives slots back."""

    borrows: bool = False  # the slots of workers that are added; else they are the job's own
    within_s: float | None = None  # by when removed workers must be gone; None: no deadline


NO_TERMS = ReclaimTerms()


# --- requests to borrow and to give back


def borrow(snapshot: Snapshot, slots: int, host: str | None, desired: Placement) -> dict[str, int]:
    name, sizes, np = snapshot.job.name, snapshot.job.sizes, sum(desired.values())
    refusal = f"cannot borrow {counted(slots, 'slot')} for job {name}"
    hosts = [replace(h, slots=h.slots - len(h.disabled)) for h in snapshot.available]
    if host is not None:
        known = ", ".join(h.name for h in hosts) or "none"
        hosts = [h for h in hosts if h.name == host]
        if not hosts:
            raise UsageError(f"{refusal}: nobody offers host {host}; its hosts are {known}")
    free = sum(max(0, h.slots - desired.get(h.name, 0)) for h in hosts)
    if not free:
        where = f"host {host} has" if host is not None else "its hosts have"
        raise UsageError(f"{refusal}: {where} no free slot")
    usable = min(slots, free)
    more = sizes.room(np, usable)
    if not more:
        raise UsageError(f"{refusal}: it has {workers(np)}, and {sizes.refusal(np + usable)}")
    return place_workers(name, np + more, desired, hosts, snapshot.assigned.by_slot)


def reclaim(
    snapshot: Snapshot, slots: int | None, host: str | None, desired: Placement
) -> dict[str, int]:
    job = snapshot.job
    borrowed = borrowed_after(snapshot.desired, desired, NO_TERMS)
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
    return place_workers(job.name, size, new, snapshot.available, snapshot.assigned.by_slot)


# --- the effect of a change of the desired workers


def borrowed_after(before: Desired, hosts: Placement, terms: ReclaimTerms) -> dict[str, int]:
    borrowed: dict[str, int] = {}
    for host, n in hosts.items():
        more = n - before.hosts.get(host, 0)
        gained = max(0, more) if terms.borrows else 0
        kept = min(n, max(0, before.borrowed.get(host, 0) + min(0, more)))
        if kept + gained:
            borrowed[host] = kept + gained
    return borrowed


def reclaims_after(
    before: Desired, hosts: Placement, terms: ReclaimTerms, now_s: float
) -> tuple[Reclaim, ...]:
    fewer = {host: n - hosts.get(host, 0) for host, n in before.hosts.items()}
    # To add workers on a host withdraws the requests there.
    kept = [reclaim for reclaim in before.reclaims if fewer.get(reclaim.host, 0) >= 0]
    if terms.within_s is not None:
        by_s = now_s + terms.within_s
        kept += [Reclaim(host, n, now_s, by_s) for host, n in sorted(fewer.items()) if n > 0]
    return tuple(kept)


# --- the deadline


class ReclaimTracker:
    # No host's clock is compared with another's, so a deadline counts from when the process that
    # judges it first saw the demand: it may be later than asked, but is never earlier.

    def __init__(self) -> None:
        self._since: dict[Reclaim, float] = {}

    def observe(self, desired: Desired, now_s: float) -> dict[Reclaim, float]:
        """Return the age of each open demand in seconds, and keep what the next call needs."""
        self._since = {reclaim: self._since.get(reclaim, now_s) for reclaim in desired.reclaims}
        return {reclaim: now_s - since_s for reclaim, since_s in self._since.items()}


def is_late(reclaim: Reclaim, age_s: float) -> bool:
    return age_s >= reclaim.within_s - min(MARGIN_S, reclaim.within_s / 2)


def overdue_on(host: str, ages_s: Mapping[Reclaim, float]) -> bool:
    return any(r.host == host and is_late(r, age_s) for r, age_s in ages_s.items())


def overdue(snapshot: Snapshot, ages_s: Mapping[Reclaim, float]) -> dict[int, str]:
    new = snapshot.generation
    late = [r for r in snapshot.desired.reclaims if is_late(r, ages_s.get(r, 0.0))]
    if new is None or not late:
        return {}
    at = {member.id: member.generation for member in snapshot.members}
    # Until all newcomers have entered, one may not have received the job's state yet.
    come = all(at.get(worker, 0) >= new.number for worker in new.joined)
    leaving = {member.id for member in snapshot.members if member.stage is Stage.LEAVING}
    leaving |= {request.worker for request in snapshot.requests}
    leaving |= {member.id for member in snapshot.ring} - {*new.worker_ids}
    evict: dict[int, str] = {}
    for reclaim in late:
        here = [member for member in snapshot.ring if member.host == reclaim.host]
        if snapshot.assigned.by_slot:
            here.sort(key=lambda member: member.slot)
        # Who leaves anyway is evicted first; of the others, the highest ranks, or slots.
        here.sort(key=lambda member: member.id in leaving)
        reason = f"its slot was to be given back within {reclaim.within_s:g} s"
        beyond = here[_allowed(snapshot.desired, reclaim, ages_s) :]
        evict |= {m.id: reason for m in beyond if come or m.id not in new.worker_ids}
    return evict


def returned(
    snapshot: Snapshot, ages_s: Mapping[Reclaim, float], host: str | None = None, hidden: int = 0
) -> tuple[Reclaim, ...]:
    """Return the open requests to give slots back that are fulfilled."""
    # An agent asks for its `host`, with the number of worker processes there that ZooKeeper does
    # not list; the leader asks for the hosts without an agent.
    agents = {agent.name for agent in snapshot.hosts}
    there = {(m.host, m.id) for m in snapshot.members} | {(s.host, s.id) for s in snapshot.ring}
    here = Counter(name for name, _ in there)
    return tuple(
        reclaim
        for reclaim in snapshot.desired.reclaims
        if (reclaim.host not in agents if host is None else reclaim.host == host)
        and here[reclaim.host] + hidden <= _allowed(snapshot.desired, reclaim, ages_s)
    )


def _allowed(desired: Desired, reclaim: Reclaim, ages_s: Mapping[Reclaim, float]) -> int:
    """Return how many workers a host may have at the deadline of a request to give slots back."""
    left_s = {r: r.within_s - ages_s.get(r, 0.0) for r in desired.reclaims}
    later = (r for r in desired.reclaims if left_s[r] > left_s[reclaim])
    leave_later = sum(r.slots for r in later if r.host == reclaim.host)
    return desired.hosts.get(reclaim.host, 0) + leave_later


def describe_returned(reclaim: Reclaim, after_s: float) -> tuple[ReclaimedDetails, str]:
    within_s = reclaim.within_s
    late = f", later than the {within_s:g} s that were left" if after_s > within_s else ""
    have = verb(reclaim.slots, "was", "were")
    slots = f"{counted(reclaim.slots, 'slot')} of host {reclaim.host}"
    text = f"{slots} {have} given back after {after_s:.1f} s"
    details = ReclaimedDetails(reclaim.host, reclaim.slots, round(after_s, 3), round(within_s, 3))
    return details, text + late


def without_reclaimed(desired: Desired, done: Collection[Reclaim]) -> Desired:
    return replace(desired, reclaims=tuple(r for r in desired.reclaims if r not in done))
