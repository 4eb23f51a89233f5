"""VirtualFlow's weighted fair shares: what its scheduler said in the published run, and others."""

from __future__ import annotations

import pytest
from clusters import decide, job, just_submitted, nodes, sizes

from benchmarks.published.virtualflow_policy import VirtualFlow, weighted_shares
from benchmarks.published.virtualflow_workload import virtualflow_jobs
from edl.cluster.state import ClusterJob

RULE = VirtualFlow()
VIEWS = {one.name: just_submitted(one) for one in virtualflow_jobs()}


def named(names: str) -> list[ClusterJob]:
    return [VIEWS[name] for name in names.split()]


@pytest.mark.parametrize(
    ("running", "said"),
    [
        # At 188, 362, 459, 500, 1189, 1977, 2034, 4768 and 5033 s of the run, jobs as they were let
        # in, "fair_allocations" in the log. Weights 5, but 10 of jobs 3, 17, 19, 1 of 6 and 15.
        ("0 1", {"0": 4, "1": 4}),
        ("0 1 2", {"0": 4, "1": 2, "2": 2}),  # 2.7 each make 2, and the first doubles
        ("0 1 2 3", {"0": 2, "1": 2, "2": 2, "3": 2}),
        ("0 1 2 3 4", {"0": 2, "1": 2, "2": 1, "3": 2, "4": 1}),
        ("0 1 2 3 4 7", {"0": 2, "1": 1, "2": 1, "3": 2, "4": 1, "7": 1}),
        ("1 2 7 10 11", {"1": 4, "2": 1, "7": 1, "10": 1, "11": 1}),
        ("1 2 7 10 11 12", {"1": 2, "2": 2, "7": 1, "10": 1, "11": 1, "12": 1}),
        ("6 15 17 18", {"6": 2, "15": 1, "17": 1, "18": 4}),
        # Of 7 slots beside 17's: 4, 2, 1 and 1 are too many, and 18, lighter than 19, is halved.
        ("6 15 17 18 19", {"6": 1, "15": 1, "17": 1, "18": 1, "19": 4}),
    ],
)
def test_shares_are_those_of_the_published_run(running: str, said: dict[str, int]) -> None:
    assert weighted_shares(named(running), {}, 8) == said


def test_who_would_lower_the_share_of_a_heavier_job_waits() -> None:
    # At 1189 s of that run: 7 is let in, as it is as heavy as 1, whose share it halves; 5 is
    # lighter than 0, whose share it would halve; 6 waits behind 5.
    present = {"0": (("n0", 2),), "1": (("n0", 2),), "2": (("n0", 1),)}
    present |= {"3": (("n0", 2),), "4": (("n0", 1),)}
    notes = {"order": ["0", "1", "2", "3", "4"]}
    decision = decide(RULE, named("0 1 2 3 4 5 6 7"), nodes(8), present, notes)
    assert sizes(decision) == {"0": 2, "1": 1, "2": 1, "3": 2, "4": 1, "7": 1}
    assert decision.state == {"order": ["0", "1", "2", "3", "4", "7"]}
    assert decision.reasons["7"] == "has 1 slot of 8: weight 5 of 35"
    assert decision.reasons["6"] == "waits with weight 1: 5 would lower the share of 0"


def test_no_more_are_let_in_than_there_are_slots() -> None:
    jobs = [job("a"), job("b"), job("heavy", weight=5.0)]
    decision = decide(RULE, jobs, nodes(2))
    assert sizes(decision) == {"heavy": 1, "a": 1}
    assert decision.reasons["b"] == "waits with weight 1: b does not fit"


def test_a_minimum_is_kept() -> None:
    # The share of 3 slots at least is 4 of 8; b's, of weight 7, 7 / 8 of 8, makes 4 then.
    jobs = [job("a", 4, min_slots=3), job("b", 8, weight=7.0)]
    assert weighted_shares(jobs, {}, 8) == {"a": 4, "b": 4}
    # The demand is below the next power of two: it has that.
    assert weighted_shares([job("a", 3, min_slots=3), job("b", 8)], {}, 8) == {"a": 3, "b": 4}
    assert weighted_shares([job("a", 4, min_slots=3)], {}, 3) is None


def test_where_nodes_were_lost_the_lightest_wait_again() -> None:
    jobs = [job("a"), job("b", weight=2.0)]
    present = {"a": (("gone", 1),), "b": (("n0", 1),)}
    assert sizes(decide(RULE, jobs, nodes(1), present)) == {"b": 1}


def test_who_may_not_be_preempted_keeps_its_slots() -> None:
    fixed = job("fixed", 2, preemptible=False)
    decision = decide(RULE, [fixed, job("a", 8)], nodes(8), {"fixed": (("n0", 3),)})
    assert sizes(decision) == {"fixed": 3, "a": 4}  # of 5 slots the power of two below
