"""The workers divide the state alike, and about equally."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.job.state_share import LEAST, StateArray, divide, parts_limit_s

ARRAYS = st.lists(st.builds(StateArray, st.integers(0, 50 * LEAST), st.booleans()), max_size=40)


def equal(*sizes: int) -> list[StateArray]:
    return [StateArray(size, is_equal=True) for size in sizes]


def test_the_largest_arrays_go_to_different_workers() -> None:
    assert divide(equal(LEAST, 9 * LEAST, 2 * LEAST, 8 * LEAST, 7 * LEAST), 3) == [1, 2, 0, 1, 0]


def test_rank_0_saves_what_is_small_and_what_may_differ() -> None:
    own = StateArray(5 * LEAST, is_equal=False)
    mixed = [*equal(LEAST - 1, 0), own, *equal(2 * LEAST, 4 * LEAST)]
    assert divide(mixed, 2) == [0, 0, 0, 0, 1]


def test_one_worker_saves_all() -> None:
    assert divide(equal(LEAST, 3 * LEAST, 0), 1) == [0, 0, 0]


@given(ARRAYS, st.integers(1, 9))
def test_no_worker_has_more_than_another_and_the_largest_array(
    arrays: list[StateArray], workers: int
) -> None:
    loads, largest = [0] * workers, 0
    for one, rank in zip(arrays, divide(arrays, workers), strict=True):
        if one.is_equal and one.size >= LEAST:
            loads[rank] += one.size
            largest = max(largest, one.size)
        else:
            assert rank == 0
    assert max(loads) - min(loads) <= largest


@given(ARRAYS, ARRAYS, st.integers(1, 9), st.randoms(use_true_random=False))
def test_what_is_a_workers_own_changes_nothing(
    arrays: list[StateArray], more: list[StateArray], workers: int, drawn: Random
) -> None:
    """Workers that hold other arrays of their own divide the equal ones alike."""
    mixed = [(True, one) for one in arrays if one.is_equal]
    for own in [one for one in (*arrays, *more) if not one.is_equal]:
        mixed.insert(drawn.randint(0, len(mixed)), (False, own))
    ranks = divide([one for _, one in mixed], workers)
    here = [rank for rank, (is_equal, _) in zip(ranks, mixed, strict=True) if is_equal]
    assert here == divide([one for one in arrays if one.is_equal], workers)


@pytest.mark.parametrize(
    ("last_s", "own_s", "limit_s"),
    [
        (None, 2.0, 36.0),
        (27.0, 0.5, 10.0),  # a part that has not come by then will not come
        (27.0, 4.0, 23.0),  # no time for the whole state: all of it is for the parts
        (27.0, 3.0, 5.0),  # so that the whole state can still be written
    ],
)
def test_how_long_parts_are_waited_for(last_s: float | None, own_s: float, limit_s: float) -> None:
    assert parts_limit_s(4, own_s, last_s) == pytest.approx(limit_s)
