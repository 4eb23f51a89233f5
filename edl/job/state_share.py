"""Divide the arrays of a job's state between the workers that save it together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapreplace

LEAST = 512  # bytes of an array that a worker other than rank 0 writes
WAIT_S = 30.0  # rank 0 waits so long for the parts of the others, and for each second
WAIT_FACTOR = 3.0  # that it wrote itself so many more
LAST_WAIT_S = 5.0  # the same two, before the end of the job
LAST_WAIT_FACTOR = 10.0
LEFT_S = 1.0  # so much stays for the whole state then, beside the time to write it
SLOWER = 1.5  # the whole state takes so many times as long as the parts of all together


@dataclass(frozen=True)
class StateShare:
    rank: int = 0
    size: int = 1  # how many workers save parts

    @property
    def is_whole(self) -> bool:
        return self.size == 1


WHOLE_STATE = StateShare()


@dataclass(frozen=True)
class StateArray:
    size: int  # in bytes
    is_equal: bool  # all workers hold the same one


@dataclass(frozen=True)
class RankArray:
    """A placeholder, in the copy of a state, for an array that another worker saves."""

    rank: int


def divide(arrays: Sequence[StateArray], workers: int) -> list[int]:
    # All workers must divide alike, so only arrays that are equal on all count; rank 0 has the
    # others. The largest goes first, to the worker that has the least so far, the highest rank of
    # several, because rank 0 has the others, too.
    ranks = [0] * len(arrays)
    divided = [at for at, one in enumerate(arrays) if one.is_equal and one.size >= LEAST]
    loads = [(0, -rank) for rank in reversed(range(workers))]  # a heap
    for at in sorted(divided, key=lambda at: -arrays[at].size):  # stable: equal ones in their order
        load, minus_rank = loads[0]
        ranks[at] = -minus_rank
        heapreplace(loads, (load + arrays[at].size, minus_rank))
    return ranks


def parts_limit_s(size: int, own_s: float, last_s: float | None) -> float:
    if last_s is None:
        return WAIT_S + WAIT_FACTOR * own_s
    # The last checkpoint: what is left beside the whole state, should a part not come. If the whole
    # state would not be written in time, the parts have all of it.
    left_s = last_s - own_s
    spare_s = left_s - LEFT_S - SLOWER * size * own_s
    return min(spare_s, LAST_WAIT_S + LAST_WAIT_FACTOR * own_s) if spare_s > 0 else left_s
