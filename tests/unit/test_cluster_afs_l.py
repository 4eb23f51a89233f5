"""AFS-L's pairwise rule, with numbers worked out by hand."""

from __future__ import annotations

import pytest
from clusters import Steps, decide, job, nodes, sizes

from benchmarks.published.afs_l import AfsL

RULE = AfsL()
# Alone on one slot a takes 100 s, b 200 s.
A = job("a", model=Steps(100, {1: 1.0, 2: 0.6, 3: 0.5, 4: 0.48}), max_slots=4)
B = job("b", model=Steps(200, {1: 1.0, 2: 0.7, 3: 0.65, 4: 0.8}))


@pytest.mark.parametrize(
    ("slots", "expected"),
    [
        (1, {"a": 1}),  # the shorter one
        (2, {"a": 1, "b": 1}),  # b: all of its speed, 1; a: 1 / 0.6 - 1 = 0.667
        (3, {"a": 2, "b": 1}),  # a, 100 s, is shorter than b, 200 s: 0.667; b: 1 - 0.7 = 0.3
        (4, {"a": 2, "b": 2}),  # a: 0.6 / 0.5 - 1 = 0.2; b: 0.3
        (5, {"a": 3, "b": 2}),  # a: 0.2; b: 1 - 0.65 / 0.7 = 0.071
        (6, {"a": 3, "b": 3}),  # a: 0.5 / 0.48 - 1 = 0.042; b: 0.071
        (7, {"a": 4, "b": 3}),  # b would be slower with 4
        (9, {"a": 4, "b": 3}),  # a may have no more: two stay free
    ],
)
def test_each_slot_goes_where_it_is_worth_most(slots: int, expected: dict[str, int]) -> None:
    assert sizes(decide(RULE, [A, B], nodes(slots))) == expected
    assert sizes(decide(RULE, [B, A], nodes(slots))) == expected


def test_who_becomes_twice_as_fast_keeps_others_out_until_then() -> None:
    # With one slot more a's speed doubles: 2 - 1 = 1, and b's 1 is not above. Then a: 1.5 - 1.
    short, long = job("short", model=Steps(100)), job("long", model=Steps(300))
    assert sizes(decide(RULE, [long, short], nodes(2))) == {"short": 2}
    assert sizes(decide(RULE, [long, short], nodes(3))) == {"short": 2, "long": 1}


def test_equal_jobs_follow_the_order_of_submission() -> None:
    one, other = job("one", model=Steps(100)), job("other", model=Steps(100))
    assert sizes(decide(RULE, [one, other], nodes(1))) == {"one": 1}
    assert sizes(decide(RULE, [other, one], nodes(1))) == {"other": 1}


def test_a_minimum_is_given_at_once_or_not_at_all() -> None:
    # large would end first, in 10 / 3 s, but its 3 slots are not there.
    large = job("large", 3, min_slots=3, model=Steps(10))
    assert sizes(decide(RULE, [large, A], nodes(2))) == {"a": 2}
    assert sizes(decide(RULE, [large, A], nodes(4))) == {"large": 3, "a": 1}
    decision = decide(RULE, [large, A], nodes(2))
    assert decision.reasons == {
        "large": "waits: it needs 3 slots, and shorter jobs have all others",
        "a": "has 2 slots: 60 s are left, one more is worth 20.0 %",
    }


def test_no_more_slots_than_can_share_its_batch() -> None:
    narrow = job("narrow", model=Steps(100), batch=12, batches=(8, 64), local_batches=(4, 16))
    decision = decide(RULE, [narrow], nodes(8))
    assert sizes(decision) == {"narrow": 3}
    assert decision.reasons["narrow"] == "has 3 slots, the most that it may have: 33 s are left"


def test_who_may_not_be_preempted_keeps_its_slots() -> None:
    fixed = job("fixed", model=Steps(1000), preemptible=False)
    decision = decide(RULE, [fixed, A], nodes(3), {"fixed": (("n0", 1),)})
    assert sizes(decision) == {"fixed": 1, "a": 2}
