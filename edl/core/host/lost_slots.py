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
    """The best thing to do after `edl-worker` processes have died, as :func:`after_loss` finds it.

    ``NOTHING``: none has died. ``PLACE_ANEW``: the driver is asked to place the slots again.
    ``WAIT``: the driver is not asked, and the job goes on with fewer workers. ``HOLD``: the same,
    and nobody may scale the job, because the driver, once asked, would end it. The values are these
    actions in words.
    """

    NOTHING = "nobody is lost"
    PLACE_ANEW = "the driver is asked to place the slots anew"
    WAIT = "the job goes on with fewer workers"
    HOLD = "the job goes on with fewer workers, and is not scaled: the driver would end it"


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
        best: the best thing to do about ``lost``, by :func:`after_loss`.
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


def abandoned(snapshot: Snapshot, seen: Slots) -> frozenset[tuple[str, int]]:
    """Return the assigned slots that had an `edl-worker` and have none now, as pairs (host, slot).

    Args:
        snapshot: the job's records in ZooKeeper.
        seen: the slots where an `edl-worker` was seen before, as pairs (host, slot); in any other
            slot it is still to start.
    """
    return frozenset((assigned_slots(snapshot) & set(seen)) - kept(snapshot))


def after_loss(assigned: Assigned, sizes: Sizes, lost: Slots) -> AfterLoss:
    """Return what to do about the slots ``lost``, whose `edl-worker` has died.

    If the driver is asked to place the slots again, it bars the hosts of these slots. So it is
    asked (``PLACE_ANEW``) if the other hosts have at least ``min_np`` workers, or if all hosts
    together have fewer than ``min_np`` left. Otherwise the job goes on with the workers that live:
    ``WAIT``, or ``HOLD`` if no other host has a worker, because the driver would then end the job.
    Without a lost slot the result is ``NOTHING``.

    Args:
        assigned: the workers that the driver has assigned to each host.
        sizes: the numbers of workers that the job may have, with their least, ``min_np``.
        lost: the lost slots, as pairs (host, slot); all are assigned.
    """
    if not lost:
        return AfterLoss.NOTHING
    barred = {host for host, _ in lost}
    left = sum(workers for host, workers in assigned.hosts.items() if host not in barred)
    working = assigned.np - len(lost)
    if sizes.enough(left) or not sizes.enough(working):
        return AfterLoss.PLACE_ANEW
    return AfterLoss.WAIT if left else AfterLoss.HOLD


def would_end_the_job(
    best: AfterLoss, desired: Placement, barred: Collection[str], sizes: Sizes
) -> bool:
    """Return whether horovodrun's driver would end a training job if asked to place slots again.

    The driver bars the hosts of lost slots, and then waits for ``min_np`` slots on other hosts; if
    these never come, it ends the job. While it waits, the `edl-worker` processes that have asked
    get no answer. The result is True for ``HOLD``. For ``WAIT`` it is True if fewer than ``min_np``
    workers are desired on hosts that are not barred. Otherwise it is False.

    Args:
        best: the best thing to do about the lost slots (:func:`after_loss`).
        desired: host -> workers as desired; empty: edl does not know them, nor which slots the
            driver would find, so the result for ``WAIT`` is False.
        barred: the hosts that the driver has barred or would bar.
        sizes: the numbers of workers that the job may have.
    """
    if best is AfterLoss.WAIT and desired:
        return not sizes.enough(sum(n for host, n in desired.items() if host not in barred))
    return best is AfterLoss.HOLD


def without_barred(assigned: Placement, lost: Slots, size: int) -> dict[str, int]:
    """Return ``assigned`` without the hosts that horovodrun's driver has barred for lost slots.

    Args:
        assigned: host -> workers as the driver has placed them; it is not changed.
        lost: the slots whose `edl-worker` has died, as pairs (host, slot). A host is barred if all
            slots that are assigned on it are among them.
        size: the number of slots that the driver uses now. If the other hosts have fewer, the
            driver has not barred these hosts, and a copy of ``assigned`` is returned.
    """
    gone = {h for h, n in assigned.items() if n and {(h, slot) for slot in range(n)} <= {*lost}}
    rest = {host: workers for host, workers in assigned.items() if host not in gone}
    return rest if sum(rest.values()) >= size else dict(assigned)
