"""Decide which process writes the records of a job again after ZooKeeper has lost them.

Every worker has read the job's records before. A worker that knows the newest generation writes
them: if an older generation were written, the next one would get a number that is already in use.
The workers try in the order of their ranks (:func:`begins_s`), if :func:`may_write` and
:func:`is_newest` allow it. If no worker of the ring is left, a launcher writes, after
:data:`LAUNCHER_S` (10) seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from edl.core.records import Generation

TURN_S, TURNS = 0.1, 50  # each of the first TURNS ranks begins TURN_S later than the one before
LAUNCHER_S = 10.0  # a launcher waits this long for the workers to write the job
PATIENCE_S = 60.0  # a process that cannot write the job takes it for removed after this time


def begins_s(own: int, generation: Generation | None) -> float:
    """Return how many seconds a worker waits for lower ranks to write the job's records first."""
    rank = None if generation is None else generation.rank_of(own)
    # A worker without a rank waits the longest.
    return TURN_S * min(TURNS, 0 if generation is None else TURNS if rank is None else rank)


def may_write(own: int, generation: Generation | None, evicted: Collection[int]) -> bool:
    """Return whether a worker may write the lost records of its job again."""
    return own not in evicted and (generation is None or generation.knows(own))


def is_newest(generation: Generation | None, known_to_others: Iterable[int]) -> bool:
    """Return whether no other worker that was asked knows a newer generation than this one does."""
    number = 0 if generation is None else generation.number
    return all(known <= number for known in known_to_others)
