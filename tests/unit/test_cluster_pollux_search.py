"""The genetic search over allocations, with numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.published.pollux_search import (
    Problem,
    SearchBudget,
    fronts,
    repaired,
    search,
    surviving,
    with_starts,
)

EFFORT = SearchBudget(population=40, generations=60, patience=60)


def problem(slots: Sequence[int], present: Sequence[Sequence[int]], power: float = 1.0) -> Problem:
    jobs, nodes, total = len(present), len(slots), sum(slots)
    by_slots = np.arange(total + 1.0) ** power
    return Problem(
        slots=np.array(slots, np.int16),
        present=np.array(present, np.int16),
        speedups=np.broadcast_to(by_slots, (jobs, nodes + 1, total + 1)).copy(),
        penalties=np.full(jobs, 0.5),
        most=np.full(jobs, total),
        least=np.ones(jobs, int),
        fixed=np.zeros(jobs, bool),
    )


def states(*of: Sequence[Sequence[int]]) -> np.ndarray:
    return np.array(of, np.int16)


def chance() -> np.random.Generator:
    return np.random.default_rng(7)


def test_the_value_of_a_state() -> None:
    # 2 nodes of 2 slots: a speedup of s counts for s / 2. The second job has moved: a half of it.
    # 1 / mean(1 / 1.001, 1 / 0.501) and 1 / mean(1 / 1.001, 1 / 0.001).
    one = problem((2, 2), [[2, 0], [0, 0]])
    values = one.values(states([[2, 0], [0, 2]], [[2, 0], [0, 0]]))
    assert values[:, 0] == pytest.approx([2 / (1 / 1.001 + 1 / 0.501), 2 / (1 / 1.001 + 1 / 0.001)])
    # Utility: 4 speedups on 4 slots; 2 on the 2 of the only node in use.
    assert values[:, 1] == pytest.approx([1, 1])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([[2, 2], [1, 0]], [[2, 2], [0, 0]]),  # 3 slots of a node of 2: who comes first has them
        ([[1, 1], [1, 1]], [[1, 1], [0, 0]]),  # two on both nodes meet: the second goes
        ([[1, 1], [1, 0]], [[1, 1], [1, 0]]),  # one on one node meets nobody
        ([[0, 1], [2, 1]], [[0, 1], [2, 1]]),  # nor does one of them on both
    ],
)
def test_a_state_is_made_valid(before, after) -> None:
    found = repaired(problem((2, 2), [[0, 0], [0, 0]]), states(before), chance())
    assert found.tolist() == [after]


def test_limits_of_a_job_are_kept() -> None:
    one = problem((4, 4), [[0, 0], [0, 0]])
    limited = replace(one, most=np.array([3, 8]), least=np.array([1, 5]))
    found = repaired(limited, states([[4, 4], [0, 0]], [[0, 0], [0, 4]]), chance())
    assert found.sum(axis=2).tolist() == [[3, 0], [0, 0]]  # 4 slots are too few for the second


def test_a_fixed_row_stays() -> None:
    one = problem((2, 2), [[1, 1], [0, 0]])
    fixed = replace(one, fixed=np.array([True, False]), most=np.array([1, 4]))
    found = repaired(fixed, states([[0, 2], [2, 2]]), chance())
    # It goes first, and is on both nodes, so the second job is on none.
    assert found.tolist() == [[[1, 1], [0, 0]]]


def test_fronts() -> None:
    # (3, 1), (2, 2), (1, 3) beat each other in one; (2, 1) and (1, 2) are beaten by (2, 2) only, by
    # the others not in both; (1, 1) by these. Equal ones are in one front.
    values = [[3, 1], [2, 2], [1, 3], [2, 1], [1, 2], [1, 1], [2, 2]]
    assert fronts(np.array(values, float)).tolist() == [0, 0, 0, 1, 1, 2, 0]


def test_who_stands_apart_survives() -> None:
    # One front; the ends stay, and of the others (5, 5) is farthest from its neighbours.
    values = np.array([[0, 10], [1, 9], [5, 5], [9, 1], [10, 0.0]])
    kept, apart = surviving(values, 3)
    assert sorted(kept.tolist()) == [0, 2, 4]
    assert sorted(apart) == pytest.approx([1.6, np.inf, np.inf])  # 8 of 10 in both


def test_who_waits_is_started_where_there_is_room() -> None:
    one = problem((2, 3), [[1, 0], [0, 0], [0, 0], [0, 0]])
    least = replace(one, least=np.array([1, 3, 4, 1]))
    # The second has its 3 of the second node; then one slot is left, too few for the third.
    assert with_starts(least).tolist() == [[1, 0], [0, 3], [0, 0], [1, 0]]


def test_slots_are_shared_evenly_where_a_further_one_gains_less() -> None:
    one = problem((4, 4), [[0, 0]] * 4, power=0.5)
    best, population = search(one, states(one.present), EFFORT, chance())
    assert best.sum(axis=1).tolist() == [2, 2, 2, 2]
    again, same = search(one, states(one.present), EFFORT, chance())
    assert (best == again).all()
    assert (population == same).all()
    assert len({state.tobytes() for state in population}) == len(population) <= 40


def test_what_is_best_stays() -> None:
    one = problem((4, 4), [[2, 0], [2, 0], [0, 2], [0, 2]], power=0.5)
    best, _ = search(one, states(one.present), EFFORT, chance())
    assert (best == one.present).all()
    # Two more slots are worth 41 % more to the first, and a move costs it a half.
    less = problem((4, 4), [[2, 0], [0, 4]], power=0.5)
    best, _ = search(less, states(less.present), EFFORT, chance())
    assert (best == less.present).all()
    # With a move for nothing, it has them.
    best, _ = search(replace(less, penalties=np.ones(2)), states(less.present), EFFORT, chance())
    assert best.sum(axis=1).tolist() == [4, 4]


def test_patience_ends_a_search_that_finds_nothing() -> None:
    one = problem((4, 4), [[2, 0], [2, 0], [0, 2], [0, 2]], power=0.5)
    drawn = [chance(), chance()]
    for patience, source in zip((1, 5), drawn, strict=True):
        best, _ = search(one, states(one.present), SearchBudget(40, 60, patience), source)
        assert (best == one.present).all()
    assert drawn[0].random() != drawn[1].random()
