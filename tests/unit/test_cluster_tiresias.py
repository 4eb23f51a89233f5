"""Tiresias' two queues, with numbers worked out by hand: 16 slot-hours are 57,600 slot-seconds."""

from __future__ import annotations

import json

from clusters import decide, job, nodes, sizes

from edl.cluster.policies.tiresias import Tiresias

LIMIT = 57600.0
RULE = Tiresias()


def test_who_has_attained_16_slot_hours_comes_after_those_who_have_not() -> None:
    jobs = [job("a", 2, attained_slot_s=LIMIT), job("b", 2, attained_slot_s=LIMIT - 1), job("c", 2)]
    present = {"a": (("n0", 2),), "b": (("n0", 2),)}
    # The first queue is b, c and takes all 4 slots; a, the second, is preempted.
    decision = decide(RULE, jobs, nodes(4), present)
    assert sizes(decision) == {"b": 2, "c": 2}
    assert decision.state == {"second": ["a"]}
    assert decision.reasons["a"] == (
        "waits: queue 2, 16.00 slot-hours attained, 16 end the first, needs 2 slots and 0 are left"
    )


def test_the_second_queue_is_in_the_order_in_which_jobs_came_to_it() -> None:
    jobs = [job("a", 2, attained_slot_s=LIMIT), job("b", 2, attained_slot_s=2 * LIMIT)]
    # b was demoted before a, so it has the 2 slots although a was submitted first.
    decision = decide(RULE, jobs, nodes(2), state={"second": ["gone", "b"]})
    assert sizes(decision) == {"b": 2}
    assert decision.state == {"second": ["b", "a"]}
    # Two that are demoted at once keep the order of submission.
    assert decide(RULE, jobs, nodes(2)).state == {"second": ["a", "b"]}


def test_nobody_comes_back_to_the_first_queue() -> None:
    jobs = [job("a", 2, attained_slot_s=0.0), job("b", 2)]
    assert sizes(decide(RULE, jobs, nodes(2), state={"second": ["a"]})) == {"b": 2}


def test_a_job_too_large_for_what_is_left_is_overtaken() -> None:
    # Of 4 slots a takes 3; b's 2 do not fit; c takes the last.
    jobs = [job("a", 3), job("b", 2), job("c", 1)]
    assert sizes(decide(RULE, jobs, nodes(4))) == {"a": 3, "c": 1}


def test_its_notes_are_json() -> None:
    notes = decide(RULE, [job("a", attained_slot_s=LIMIT)], nodes(4)).state
    assert json.loads(json.dumps(notes)) == notes
