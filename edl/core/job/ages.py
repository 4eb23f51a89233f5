"""Measure for how long the facts by which a leader decides about members have been true.

The entry point is :class:`AgeTracker`; a leader has one for each of its terms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edl.core.job.borrowing import ReclaimTracker
from edl.core.job.ring_failure import is_broken
from edl.core.records import Generation, Reclaim, Stage
from edl.core.snapshot import Snapshot

AWAY_S = 10.0  # if a look comes later, the leader could not read: the rest does not count


@dataclass(frozen=True)
class Ages:
    """How long the leader has seen the facts by which it decides, by its own clock."""

    # All ages begin at 0 with a new leader. Time in which it cannot read ZooKeeper does not count,
    # for the workers may not be able to write then, either. So a limit may take longer, never less.

    leading_s: float = 0.0  # since its term began
    stage_s: Mapping[int, float] = field(default_factory=dict)  # in its stage, by id of a worker
    generation_s: float = 0.0  # of the newest generation; before the first one, as `leading_s`
    broken_s: float = 0.0  # since a member reported the newest ring as broken; 0.0: none does
    # Since all workers of the ring are evicted, except those that were to leave; 0.0: one is not.
    lost_s: float = 0.0
    # For each open demand to give slots back; it counts on without ZooKeeper, for the owner waits.
    reclaims_s: Mapping[Reclaim, float] = field(default_factory=dict)


class AgeTracker:
    """The ages in one leader's term, from the snapshots that it reads."""

    def __init__(self, now_s: float) -> None:
        self._since = now_s
        self._looked_s = now_s
        self._away_s = 0.0
        self._stages: dict[int, tuple[Stage, float]] = {}
        self._announced = (0, now_s)  # number of the newest generation, and when it was seen
        self._broken: float | None = None
        self._lost: float | None = None
        self._reclaims = ReclaimTracker()

    def look(self, now: Snapshot, now_s: float) -> Ages:
        """Return the ages of the facts in a new snapshot, which was read at `now_s`."""
        reclaims_s = self._reclaims.look(now.desired, now_s)
        self._away_s += max(0.0, now_s - self._looked_s - AWAY_S)
        self._looked_s = now_s
        now_s -= self._away_s
        before = self._stages
        self._stages = {
            m.id: before[m.id] if before.get(m.id, (None,))[0] is m.stage else (m.stage, now_s)
            for m in now.members
        }
        generation = now.generation
        number = generation.number if generation is not None else 0
        if number != self._announced[0]:
            self._announced = (number, now_s)
            self._broken = None
        if not is_broken(now):
            self._broken = None
        elif self._broken is None:
            self._broken = now_s
        if generation is None or not _is_lost(now, generation):
            self._lost = None
        elif self._lost is None:
            self._lost = now_s
        return Ages(
            now_s - self._since,
            {worker: now_s - at for worker, (_, at) in self._stages.items()},
            now_s - self._announced[1],
            0.0 if self._broken is None else now_s - self._broken,
            0.0 if self._lost is None else now_s - self._lost,
            reclaims_s,
        )


def _is_lost(now: Snapshot, generation: Generation) -> bool:
    return all(member.id in now.evicted for member in now.ring if member.id not in generation.left)
