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
    """Return how many seconds a worker waits for lower ranks to write the job's records first.

    A worker waits :data:`TURN_S` (0.1) seconds for each lower rank, at most for :data:`TURNS` (50).
    A worker without a rank in ``generation`` waits the longest time. Before the first generation
    nobody waits: the result is 0.

    Args:
        own: the id of the worker.
        generation: the newest generation that it has read; None: there was none yet.
    """
    rank = None if generation is None else generation.rank_of(own)
    return TURN_S * min(TURNS, 0 if generation is None else TURNS if rank is None else rank)


def may_write(own: int, generation: Generation | None, evicted: Collection[int]) -> bool:
    """Return whether a worker may write the lost records of its job again.

    It may if it is not evicted and is a member of the newest generation or of the ring before it;
    before the first generation every worker may that is not evicted.

    Args:
        own: the id of the worker.
        generation: the newest generation that the worker has read; None: there was none yet.
        evicted: the ids of the evicted workers.
    """
    return own not in evicted and (generation is None or generation.knows(own))


def is_newest(generation: Generation | None, known_to_others: Iterable[int]) -> bool:
    """Return whether no other worker that was asked knows a newer generation than this one does.

    Args:
        generation: the newest generation that this worker has read; None: none, which counts as 0.
        known_to_others: the number of the newest generation that each other worker which answered
            knows; empty gives True.
    """
    number = 0 if generation is None else generation.number
    return all(known <= number for known in known_to_others)
