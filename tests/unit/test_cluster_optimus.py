"""Optimus' greedy gains, with numbers worked out by hand."""

from __future__ import annotations

import pytest
from clusters import Steps, decide, job, nodes, sizes

from benchmarks.published.optimus import Optimus, gain_s

RULE = Optimus()
# With one slot more, a gains 100 steps of 0.4, 0.1, 0.02 s: 40, 10, 2 s.
A = job("a", model=Steps(100, {1: 1.0, 2: 0.6, 3: 0.5, 4: 0.48}), max_slots=4)
# b gains 200 steps of 0.1, 0.05 s, 20 and 10 s, then a fourth slot costs it 200 of 0.15 s.
B = job("b", model=Steps(200, {1: 1.0, 2: 0.9, 3: 0.85, 4: 1.0}))


def test_gains() -> None:
    assert [gain_s(A, slots, 4) for slots in (1, 2, 3, 4)] == pytest.approx([40, 10, 2, 0])
    assert [gain_s(B, slots, 4) for slots in (1, 2, 3)] == pytest.approx([20, 10, -30])


@pytest.mark.parametrize(
    ("slots", "expected"),
    [
        (1, {"a": 1}),  # the minimum of who came first
        (2, {"a": 1, "b": 1}),
        (3, {"a": 2, "b": 1}),  # a gains 40, b 20
        (4, {"a": 2, "b": 2}),  # a would gain 10 more, b 20
        (6, {"a": 3, "b": 3}),  # 10 each
        (7, {"a": 4, "b": 3}),  # a gains 2, b would lose 30
        (9, {"a": 4, "b": 3}),  # a may have no more, b wants none: two slots stay free
    ],
)
def test_each_slot_goes_where_it_saves_most(slots: int, expected: dict[str, int]) -> None:
    assert sizes(decide(RULE, [A, B], nodes(slots))) == expected


def test_ties_go_to_who_came_first() -> None:
    one, other = job("one", model=Steps(100)), job("other", model=Steps(100))
    # Both gain 100 (1 - 1/2) = 50 s; a third slot gives 100 (1/2 - 1/3).
    assert sizes(decide(RULE, [one, other], nodes(3))) == {"one": 2, "other": 1}
    assert sizes(decide(RULE, [other, one], nodes(3))) == {"other": 2, "one": 1}


def test_small_jobs_are_placed_first_on_the_emptiest_node() -> None:
    # Of 4 slots on 2 nodes each has 2. Who keeps its size keeps its slots.
    decision = decide(RULE, [A, B], nodes(2, 2), {"b": (("n0", 1), ("n1", 1))})
    assert decision.placements == {"b": (("n0", 1), ("n1", 1)), "a": (("n0", 1), ("n1", 1))}
    # Of 3 slots b has 1 and comes first: on n1, the emptiest. a takes the two that are left.
    decision = decide(RULE, [A, B], nodes(1, 2))
    assert decision.placements == {"b": (("n1", 1),), "a": (("n0", 1), ("n1", 1))}


def test_minima_and_reasons() -> None:
    large = job("large", model=Steps(100), min_slots=4)
    decision = decide(RULE, [large, A], nodes(4))
    # a has the smaller minimum and comes first; then 3 slots are left, too few for large.
    assert sizes(decision) == {"a": 4}
    assert decision.reasons == {
        "a": "has 4 slots: one more would save 0 s",
        "large": "waits: it needs 4 slots, and earlier jobs have all others",
    }


def test_who_may_not_be_preempted_keeps_its_slots() -> None:
    fixed = job("fixed", model=Steps(1000), preemptible=False)
    present = {"fixed": (("n0", 1),)}
    decision = decide(RULE, [fixed, A], nodes(4), present)
    assert decision.placements["fixed"] == (("n0", 1),)
    assert sizes(decision) == {"fixed": 1, "a": 3}
