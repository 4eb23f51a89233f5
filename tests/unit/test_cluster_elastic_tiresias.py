"""Elastic-Tiresias' steps, with numbers worked out by hand: one slot-hour ends the first queue."""

from __future__ import annotations

import json

import pytest
from clusters import Steps, decide, job, nodes, sizes

from edl.cluster.policies.tiresias import ElasticTiresias, speedup

RULE = ElasticTiresias()
# A's speedups are 1, 1.667 and 2.
A = job("a", 2, model=Steps(100, {1: 1.0, 2: 0.6, 3: 0.5}))
POOR = Steps(100, {1: 1.0, 2: 1.1, 3: 1.2, 4: 1.3})  # slower with every slot


def test_speedup_is_linear_up_to_the_minimum() -> None:
    assert [speedup(A, slots, 4) for slots in (1, 2, 3)] == pytest.approx([1, 1 / 0.6, 2])
    # Two slots at least: with 3 a step takes 0.5 s in place of 0.6 s, 2 * 0.6 / 0.5 = 2.4.
    two = job("two", 2, min_slots=2, model=A.model)
    assert [speedup(two, slots, 4) for slots in (1, 2, 3)] == pytest.approx([1, 2, 2.4])


def test_slots_beyond_the_requests_go_where_most_is_gained() -> None:
    # Both have the 2 that they requested. a gains 2 - 1.667 = 0.333 by one more, b 1.
    decision = decide(RULE, [A, job("b", 2)], nodes(5))
    assert sizes(decision) == {"a": 2, "b": 3}
    assert decision.reasons == {
        "a": "has 2 slots in queue 1: as requested",
        "b": "has 3 slots in queue 1: 1 beyond its request, where most is gained",
    }
    # Nobody gains: the others stay free.
    assert sizes(decide(RULE, [job("poor", model=POOR)], nodes(4))) == {"poor": 1}


def test_who_has_none_gets_its_minimum_before_others_grow() -> None:
    # a has its 2, b's 2 do not fit into 1. b's minimum is worth 1, one more for a 0.333.
    decision = decide(RULE, [A, job("b", 2)], nodes(3))
    assert sizes(decision) == {"a": 2, "b": 1}
    why = "has 1 slot in queue 1: fewer than the 2 requested, which are not left"
    assert decision.reasons["b"] == why


def test_with_more_than_10_waiting_the_second_queue_is_cut_to_its_minimum() -> None:
    old = job("old", 4, model=POOR, attained_slot_s=4000.0)

    def with_waiting(count: int) -> list[str]:
        large = [job(f"j{number}", 8, min_slots=3) for number in range(count)]
        decision = decide(RULE, [old, *large], nodes(4))
        assert decision.state["second"] == ["old"]
        return [f"{name} {slots}" for name, slots in sizes(decision).items()]

    # 10 wait: old has the 4 that it requested, and no other job fits.
    assert with_waiting(10) == ["old 4"]
    # 11 wait: old has 1, and of the 3 that it frees the first of them gets its minimum.
    assert with_waiting(11) == ["old 1", "j0 3"]


def test_the_second_queue_begins_above_one_slot_hour() -> None:
    jobs = [job("a", 2, attained_slot_s=3600.0), job("b", 2)]
    assert sizes(decide(RULE, jobs, nodes(2))) == {"a": 2}
    jobs[0] = job("a", 2, attained_slot_s=3601.0)
    decision = decide(RULE, jobs, nodes(2))
    assert sizes(decision) == {"b": 2}
    assert decision.reasons["a"] == "waits in queue 2: 2 slots were requested, and fewer are left"


def test_who_waits_8_times_as_long_as_it_ran_returns_to_the_first_queue() -> None:
    # It ran for 50 s and stopped at 100: 400 s later it is promoted, and comes before b, since it
    # has started before. Its service counts anew from then on.
    jobs = [job("b", 2), job("a", 2, attained_slot_s=5000.0)]
    notes = {"second": ["a"], "stopped": {"a": [100.0, 50.0]}, "started": {"a": 50.0}}
    assert sizes(decide(RULE, jobs, nodes(2), state=notes, now_s=499)) == {"b": 2}
    decision = decide(RULE, jobs, nodes(2), state=notes, now_s=500)
    assert sizes(decision) == {"a": 2}
    assert (decision.state["second"], decision.state["served"]) == ([], {"a": 5000.0})
    for attained_slot_s, second in ((8600.0, []), (8601.0, ["a"])):
        jobs[1] = job("a", 2, attained_slot_s=attained_slot_s)
        later = decide(RULE, jobs, nodes(2), decision.placements, decision.state, 9000)
        assert later.state["second"] == second


def test_it_notes_who_ran_since_when_and_for_how_long() -> None:
    jobs = [job("a", 2, attained_slot_s=3000.0)]
    first = decide(RULE, jobs, nodes(2), now_s=100)
    assert first.state["began"] == first.state["started"] == {"a": 100}
    # At 160 it is demoted and b has both slots; a stopped after 60 s.
    jobs = [job("a", 2, attained_slot_s=4000.0), job("b", 2)]
    second = decide(RULE, jobs, nodes(2), first.placements, first.state, 160)
    assert sizes(second) == {"b": 2}
    assert second.state["stopped"] == {"a": [160, 60]}
    assert second.state["started"] == {"a": 100, "b": 160}
    third = decide(RULE, jobs, nodes(2), second.placements, second.state, 200)
    assert third.state["stopped"] == {"a": [160, 60]}
    assert json.loads(json.dumps(third.state)) == third.state


def test_who_may_not_be_preempted_keeps_its_slots() -> None:
    fixed = job("fixed", 4, attained_slot_s=9000.0, preemptible=False)
    decision = decide(RULE, [fixed, A], nodes(4), {"fixed": (("n0", 3),)})
    assert sizes(decision) == {"fixed": 3, "a": 1}
