"""Decide which process writes the records of a job again after ZooKeeper has lost them.

Every worker has read the job's records before. A worker that knows the newest generation writes
them: if an older generation were written, the next one would get a number that is already in use.
    If no worker of the ring is left, a launcher writes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from edl.core.records import Generation

TURN_S, TURNS = 0.1, 50  # each of the first TURNS ranks begins TURN_S later than the one before
LAUNCHER_S = 10.0  # a launcher waits this long for the workers to write the job
PATIENCE_S = 60.0  # a process that cannot write the job takes it for removed after this time


def begins_s(own: int, generation: Generation | None) -> float:
    """Return how many seconds a worker waits for lower ranks to write the job's records first.

    Each rank waits :data:`TURN_S` seconds longer than the rank before it, up to rank :data:`TURNS`.
    A worker without a rank waits as long as that; all wait 0 seconds before the first generation.

    Args:
        own: the id of the worker.
        generation: the newest generation that it has read; None: none.
    """
    rank = None if generation is None else generation.rank_of(own)
    return TURN_S * min(TURNS, 0 if generation is None else TURNS if rank is None else rank)


def may_write(own: int, generation: Generation | None, evicted: Collection[int]) -> bool:
    """Return whether a worker may write the lost records of its job again.

    Args:
        own: the id of the worker.
        generation: the newest generation that the worker has read; it must be a member of that
            one or of the ring before it. None: there was no generation yet.
        evicted: the ids of the evicted workers, which may not write.
    """
    return own not in evicted and (generation is None or generation.knows(own))


def is_newest(generation: Generation | None, known_to_others: Iterable[int]) -> bool:
    """Return whether no other worker that answers knows a newer generation than this one does.

    Args:
        generation: the newest generation that this worker has read; None: none.
        known_to_others: the number of the newest generation that each other worker knows.
    """
    number = 0 if generation is None else generation.number
    return all(known <= number for known in known_to_others)
