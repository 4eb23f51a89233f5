"""Max-min fairness of slots, with numbers worked out by hand."""

from __future__ import annotations

import pytest
from clusters import decide, job, nodes, sizes

from edl.cluster.policies.simple import MaxMin

JOBS = [job("a", max_slots=8), job("b", max_slots=2), job("c", max_slots=8)]


@pytest.mark.parametrize(
    ("slots", "expected"),
    [
        (2, {"a": 1, "b": 1}),  # c came last and waits
        (3, {"a": 1, "b": 1, "c": 1}),
        (5, {"a": 2, "b": 2, "c": 1}),  # one each, then one more each in their order
        (8, {"a": 3, "b": 2, "c": 3}),  # b may have 2; the other 6 are halved
        (9, {"a": 4, "b": 2, "c": 3}),
        (20, {"a": 8, "b": 2, "c": 8}),  # two stay free
    ],
)
def test_equal_shares_within_the_limits(slots: int, expected: dict[str, int]) -> None:
    assert sizes(decide(MaxMin(), JOBS, nodes(slots))) == expected


def test_minima_come_first() -> None:
    # large has its 4 before anybody has more than its minimum; small gets the other 2.
    large, small = job("large", 4, min_slots=4), job("small")
    assert sizes(decide(MaxMin(), [large, small], nodes(6))) == {"large": 4, "small": 2}
    # Of 3 slots large cannot start, and small has all of them.
    decision = decide(MaxMin(), [large, small], nodes(3))
    assert sizes(decision) == {"small": 3}
    assert decision.reasons == {
        "large": "waits: it needs 4 slots, and earlier jobs have all others",
        "small": "has 3 slots, its share among 1 job: it may have 1 to 8",
    }


def test_who_may_not_be_preempted_keeps_its_slots() -> None:
    fixed = job("fixed", preemptible=False)
    present = {"fixed": (("n0", 3),)}
    assert sizes(decide(MaxMin(), [fixed, *JOBS[:1]], nodes(8), present)) == {"fixed": 3, "a": 5}
