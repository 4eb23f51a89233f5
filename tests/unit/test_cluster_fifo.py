"""FIFO with and without backfilling, and SRTF, with numbers worked out by hand."""

from __future__ import annotations

from clusters import Steps, decide, job, nodes, sizes

from benchmarks.published.srtf import Srtf, remaining_s
from edl.cluster.policies.simple import Fifo

# 4 slots: a takes 2, b would need 3 of the 2 that are left, c and d need 1 each.
JOBS = [job("a", 2), job("b", 3, arrival_s=40.0), job("c", 1), job("d", 1)]


def test_without_backfilling_who_does_not_fit_holds_up_the_rest() -> None:
    decision = decide(Fifo(), JOBS, nodes(4))
    assert sizes(decision) == {"a": 2}
    assert decision.reasons == {
        "a": "has 2 slots: submitted 100 s ago",
        "b": "waits: submitted 60 s ago, needs 3 slots and 2 are left",
        "c": "waits behind b: submitted 100 s ago",
        "d": "waits behind b: submitted 100 s ago",
    }


def test_with_backfilling_they_go_ahead() -> None:
    decision = decide(Fifo(backfill=True), JOBS, nodes(4))
    assert sizes(decision) == {"a": 2, "c": 1, "d": 1}


def test_nobody_loses_its_slots() -> None:
    # c and d were started before a and b came: a fits beside them, b does not.
    present = {"c": (("n0", 1),), "d": (("n0", 1),)}
    decision = decide(Fifo(), JOBS, nodes(4), present)
    assert sizes(decision) == {"c": 1, "d": 1, "a": 2}
    assert decision.reasons["c"] == "has 1 slot: it runs to its end"


def test_by_weight_the_heaviest_of_those_that_wait_goes_first() -> None:
    jobs = [job("a", 2), job("b", 2), job("c", 2, weight=5.0), job("d", 1, weight=5.0)]
    # a runs to its end. Of the 2 slots left c takes both; d and b, lighter or later, wait.
    decision = decide(Fifo(by_weight=True), jobs, nodes(4), {"a": (("n0", 2),)})
    assert sizes(decision) == {"a": 2, "c": 2}
    assert decision.reasons["c"] == "has 2 slots: weight 5, submitted 100 s ago"
    assert decision.reasons["b"] == "waits behind d: weight 1, submitted 100 s ago"


def test_the_shortest_remaining_time_goes_first() -> None:
    # a: 100 steps of 1/2 s on 2 slots, 50 s. b: 60 of 1/3 s, 20 s. c: 30 of 1 s, 30 s.
    jobs = [
        job("a", 2, model=Steps(100)),
        job("b", 3, model=Steps(60)),
        job("c", 1, model=Steps(30)),
    ]
    assert [remaining_s(one, 4) for one in jobs] == [50.0, 20.0, 30.0]
    # Of 4 slots b has 3 and c the last; a, which runs, is preempted.
    decision = decide(Srtf(), jobs, nodes(4), {"a": (("n0", 2),)})
    assert sizes(decision) == {"b": 3, "c": 1}
    assert decision.reasons["a"] == "waits: 50 s remain, needs 2 slots and 0 are left"
    # Of 3 slots, c does not fit beside b; of 2, b does not fit, c and then a's 2 neither.
    assert sizes(decide(Srtf(), jobs, nodes(3))) == {"b": 3}
    assert sizes(decide(Srtf(), jobs, nodes(2))) == {"c": 1}


def test_who_may_not_be_preempted_comes_first() -> None:
    jobs = [job("long", 3, preemptible=False, model=Steps(900)), job("short", 2, model=Steps(1))]
    present = {"long": (("n0", 3),)}
    assert decide(Srtf(), jobs, nodes(4), present).placements == present
    assert sizes(decide(Srtf(), jobs, nodes(4))) == {"short": 2}
