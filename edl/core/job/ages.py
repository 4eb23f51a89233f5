"""How long the facts that a leader decides by have stood as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edl.core.job.ring_failure import broke
from edl.core.records import Generation, Snapshot, Stage

AWAY_S = 10.0  # a look that comes later than this: the leader could not read meanwhile


@dataclass(frozen=True)
class Ages:
    """In seconds, by the leader's own clock.

    A new leader starts to count afresh, and no time passes while a leader cannot read, for a worker
    may not be able to write then, either. So limits may stretch but never shrink.
    """

    leading_s: float = 0.0
    stage_s: Mapping[int, float] = field(default_factory=dict)  # worker -> time in its stage
    generation_s: float = 0.0  # since the present generation was first seen
    broken_s: float = 0.0  # since its ring was first seen to be broken
    lost_s: float = 0.0  # since the last worker of the ring was evicted


class AgeTracker:
    """What one leader remembers of what it has read; ``now_s``: when its term begins."""

    def __init__(self, now_s: float) -> None:
        self._since = now_s
        self._looked_s = now_s
        self._away_s = 0.0
        self._stages: dict[int, tuple[Stage, float]] = {}
        self._announced = (0, now_s)  # the newest generation
        self._broken: float | None = None
        self._lost: float | None = None

    def look(self, now: Snapshot, now_s: float) -> Ages:
        """The ages of what ``now`` says, which was read at ``now_s``."""
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
        if generation is not None and any(broke(m, generation) for m in now.members):
            self._broken = now_s if self._broken is None else self._broken
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
        )


def _is_lost(now: Snapshot, generation: Generation) -> bool:
    """Whether nobody is left of those in the ring that were to stay."""
    return all(member.id in now.evicted for member in now.ring if member.id not in generation.left)
