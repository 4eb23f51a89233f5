"""Who writes a job again that ZooKeeper has lost.

Everybody has read what it is. Who knows of the newest generation writes: others may be on their way
into it, and two of one number must never be. Where nobody is left in the ring, a launcher does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from edl.core.records import Generation

TURN_S, TURNS = 0.1, 50  # a rank begins this much after the one before it; the rest all at once
LAUNCHER_S = 10.0  # a launcher leaves it to the workers for so long
PATIENCE_S = 60.0  # who cannot write it, and waits so long in vain, takes it for removed


def begins_s(own: int, generation: Generation | None) -> float:
    """How long worker ``own`` leaves it to the ranks before it, in seconds."""
    rank = None if generation is None else generation.rank_of(own)
    return TURN_S * min(TURNS, 0 if generation is None else TURNS if rank is None else rank)


def may_write(own: int, generation: Generation | None, evicted: Collection[int]) -> bool:
    """Whether worker ``own`` is of the job as it knows it, so that it may write it again."""
    return own not in evicted and (generation is None or generation.knows(own))


def is_newest(generation: Generation | None, known_to_others: Iterable[int]) -> bool:
    """Whether none of the others that answer knows a newer generation."""
    number = 0 if generation is None else generation.number
    return all(known <= number for known in known_to_others)
