"""Find the slots whose `edl-worker` has died, and decide what the other `edl-worker`s do then.

This is for jobs that horovodrun started. When an `edl-worker` has died, with its host or by kill
-9, the driver knows it, but acts only when all other `edl-worker` processes ask it to place the
slots again: then it bars the whole host. :func:`abandoned` finds such slots, and :func:`after_loss`
decides whether to ask the driver. The entry point is :meth:`LostSlots.see`.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from edl.core.host.horovodrun_slot import SlotLimits, Slots, assigned_slots, kept
from edl.core.job.placement import Placement
from edl.core.records import Assigned
from edl.core.sizes import Sizes
from edl.core.snapshot import Snapshot


class AfterLoss(Enum):
    """The best thing to do after `edl-worker` processes have died, as `after_loss` finds it."""

    # HOLD: the driver, once asked, would end the job.

    NOTHING = "nobody is lost"
    PLACE_ANEW = "the driver is asked to place the slots anew"
    WAIT = "the job goes on with fewer workers"
    HOLD = "the job goes on with fewer workers, and is not scaled: the driver would end it"


class LostSlots:
    """A watcher in one `edl-worker` for the slots whose `edl-worker` has died."""

    def __init__(self, host: str, slot: int, limits: SlotLimits) -> None:
        self.lost: frozenset[tuple[str, int]] = frozenset()  # whose `edl-worker` has died
        self.best = AfterLoss.NOTHING  # about `lost`
        self.barred: frozenset[str] = frozenset()  # until an `edl-worker` registers there again
        self._own, self._limits = (host, slot), limits
        self._assigned: dict[tuple[str, int], float] = {}  # slots, since when
        self._seen: frozenset[tuple[str, int]] = frozenset()  # that an edl-worker has kept, or none
        self._missing: frozenset[tuple[str, int]] = frozenset()  # of these, without one now
        self._missing_since = 0.0
        self._asked_for: frozenset[tuple[str, int]] = frozenset()

    def see(self, snapshot: Snapshot, answered: float, now: float) -> bool:
        """Update the attributes; return, once for a set of lost slots, whether to ask."""
        # A slot that is assigned again is another edl-worker's, which may be on its way.
        slots = assigned_slots(snapshot)
        self._assigned = {slot: self._assigned.get(slot, now) for slot in slots}
        overdue = {
            s for s, since in self._assigned.items() if now - since >= self._limits.overdue_s
        }
        self._seen = slots & (self._seen | kept(snapshot) | overdue)
        missing = abandoned(snapshot, self._seen)
        if missing != self._missing:
            self._missing, self._missing_since = missing, now
        waited = now - max(self._missing_since, answered)
        self.lost = missing if waited >= self._limits.abandoned_s else self.lost & missing
        if not self.lost:
            self._asked_for = self.lost  # the same slots may be lost again
        back = {one.host for one in snapshot.slots if (one.host, one.slot) in slots}
        self.barred = (self.barred - back) | {host for host, _ in self.lost}
        self.best = after_loss(snapshot.assigned, snapshot.job.sizes, self.lost)
        ask = self.best is AfterLoss.PLACE_ANEW and self.lost != self._asked_for
        turn_s = self.turn(snapshot) * self._limits.turn_s
        if not ask or waited < self._limits.abandoned_s + turn_s:
            return False
        self._asked_for = self.lost
        return True

    def turn(self, snapshot: Snapshot) -> int:
        """Return the index of this `edl-worker` by (host, slot); the first one asks for all."""
        here = sorted(kept(snapshot))
        return here.index(self._own) if self._own in here else 0

    def __str__(self) -> str:
        return " and ".join(f"slot {slot} on {host}" for host, slot in sorted(self.lost))


def abandoned(snapshot: Snapshot, seen: Slots) -> frozenset[tuple[str, int]]:
    """Return the assigned slots that had an `edl-worker` and have none now."""
    return frozenset((assigned_slots(snapshot) & set(seen)) - kept(snapshot))


def after_loss(assigned: Assigned, sizes: Sizes, lost: Slots) -> AfterLoss:
    """Return what to do about the slots `lost`, whose `edl-worker` has died."""
    if not lost:
        return AfterLoss.NOTHING
    # The driver, if asked, bars the hosts of these slots.
    barred = {host for host, _ in lost}
    left = sum(workers for host, workers in assigned.hosts.items() if host not in barred)
    working = assigned.np - len(lost)
    if sizes.enough(left) or not sizes.enough(working):
        return AfterLoss.PLACE_ANEW
    return AfterLoss.WAIT if left else AfterLoss.HOLD  # HOLD: it would end the job


def would_end_the_job(
    best: AfterLoss, desired: Placement, barred: Collection[str], sizes: Sizes
) -> bool:
    """Return whether horovodrun's driver would end a training job if asked to place slots again."""
    # It bars the hosts of lost slots, waits for `min_np` slots on others, and then ends the job.
    # Nothing desired: edl does not know what the driver would find.
    if best is AfterLoss.WAIT and desired:
        return not sizes.enough(sum(n for host, n in desired.items() if host not in barred))
    return best is AfterLoss.HOLD


def without_barred(assigned: Placement, lost: Slots, size: int) -> dict[str, int]:
    """Return `assigned` without the hosts that horovodrun's driver has barred for lost slots."""
    gone = {h for h, n in assigned.items() if n and {(h, slot) for slot in range(n)} <= {*lost}}
    rest = {host: workers for host, workers in assigned.items() if host not in gone}
    # With fewer slots than it uses, the driver has not barred these hosts.
    return rest if sum(rest.values()) >= size else dict(assigned)
