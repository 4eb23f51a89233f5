"""Find the slots of a job whose `edl-worker` has died, in the `edl-worker` of another slot."""

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

    Args:
        host: the host of the watching `edl-worker`.
        slot: the slot of that host in which the watching `edl-worker` keeps a worker.
        limits: the time limits of the watching `edl-worker`.

    Attributes:
        lost: the slots whose `edl-worker` has died, as pairs (host, slot).
        best: the best thing to do about the lost slots.
        barred: the hosts on which an `edl-worker` has died and none has come back.
    """

    def __init__(self, host: str, slot: int, limits: SlotLimits) -> None:
        """Begin without any lost slot, for the `edl-worker` that keeps ``slot`` of ``host``."""
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
        """Update the attributes, and return whether to ask the driver to place the slots again.

        Only one `edl-worker` asks at a time, once for each set of lost slots.

        Args:
            snapshot: the job's records in ZooKeeper.
            answered: when the driver of horovodrun last placed the slots, in seconds; for some time
                after that a slot without a registered `edl-worker` does not count as lost.
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
        """Return the place of this `edl-worker` among those of the job, in order of (host, slot).

        The `edl-worker` at place 0 asks the driver on behalf of all; if it does not, the one at
        place 1 does, and so on. ``snapshot`` has the job's records in ZooKeeper. The result is 0 if
        they have no record of this `edl-worker`.
        """
        here = sorted(kept(snapshot))
        return here.index(self._own) if self._own in here else 0

    def __str__(self) -> str:
        """Return the lost slots in words: "slot 0 on a and slot 1 on b"."""
        return " and ".join(f"slot {slot} on {host}" for host, slot in sorted(self.lost))
