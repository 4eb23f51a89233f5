"""Find the slots of a job whose `edl-worker` has died, in the `edl-worker` of another slot.

This is for jobs that horovodrun started. The entry point is :meth:`LostSlots.see`.
"""

from __future__ import annotations

from edl.core.host.horovodrun_slot import (
    AfterLoss,
    SlotLimits,
    abandoned,
    after_loss,
    assigned_slots,
    kept,
)
from edl.core.snapshot import Snapshot


class LostSlots:
    """A watcher in one `edl-worker` for the slots whose `edl-worker` has died.

    The `edl-worker` calls :meth:`see` with each new snapshot of the job's records, and reads the
    attributes, which change only there.

    Args:
        host: the host of the watching `edl-worker`.
        slot: the slot of that host in which the watching `edl-worker` keeps a worker.
        limits: the time limits of the watching `edl-worker`.

    Attributes:
        lost: the slots whose `edl-worker` has died, as pairs (host, slot); at first empty.
        best: the best thing to do about ``lost``, by
            :func:`edl.core.host.horovodrun_slot.after_loss`.
        barred: the hosts on which an `edl-worker` has died, until an `edl-worker` registers there
            again.
    """

    def __init__(self, host: str, slot: int, limits: SlotLimits) -> None:
        """Begin without lost slots, for the `edl-worker` that keeps a worker in one slot.

        Args:
            host: the host of that `edl-worker`.
            slot: the number of its slot on the host.
            limits: its time limits.
        """
        self.lost: frozenset[tuple[str, int]] = frozenset()
        self.best = AfterLoss.NOTHING
        self.barred: frozenset[str] = frozenset()
        self._own, self._limits = (host, slot), limits
        self._assigned: dict[tuple[str, int], float] = {}  # slots, since when
        self._seen: frozenset[tuple[str, int]] = frozenset()  # that an edl-worker has kept, or none
        self._missing: frozenset[tuple[str, int]] = frozenset()  # of these, without one now
        self._missing_since = 0.0
        self._asked_for: frozenset[tuple[str, int]] = frozenset()

    def see(self, snapshot: Snapshot, answered: float, now: float) -> bool:
        """Update the attributes, and return whether this `edl-worker` is to ask the driver now.

        To ask is to let horovodrun's driver place the slots again. The result is True once for each
        set of lost slots, if :attr:`best` is ``PLACE_ANEW``, when the slots have been missing for
        ``abandoned_s``, and ``turn_s`` longer for each `edl-worker` that precedes this one:
        normally the first one has then asked, and the set is not lost any more.

        Args:
            snapshot: the job's records in ZooKeeper.
            answered: when the driver of horovodrun last placed the slots, in seconds; for
                ``abandoned_s`` after that no further slot becomes lost.
            now: the time by the same clock.
        """
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
        """Return the index, from 0, of this `edl-worker` among those of the job, by (host, slot).

        The `edl-worker` at index 0 asks the driver on behalf of all; if it does not, the one at
        index 1 does, and so on. The result is 0 if this `edl-worker` is not registered.

        Args:
            snapshot: the job's records in ZooKeeper.
        """
        here = sorted(kept(snapshot))
        return here.index(self._own) if self._own in here else 0

    def __str__(self) -> str:
        """Return the lost slots in words: "slot 0 on a and slot 1 on b"; empty if none is lost."""
        return " and ".join(f"slot {slot} on {host}" for host, slot in sorted(self.lost))
