"""Pollux' decisions, with numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from clusters import decide, job, nodes, result, sizes, submitted

from benchmarks.published.pollux_policy import Pollux
from benchmarks.published.registry import POLICIES
from edl.cluster.policies.registry import with_run
from edl.cluster.state import ClusterJob
from edl.policy.step_time import StepTimeSample

RULE = Pollux(population=40, generations=40)


def seen(*slots: int, hosts: int = 1) -> tuple[StepTimeSample, ...]:
    return tuple(StepTimeSample(count, hosts, 10, 1.0, 1.0) for count in slots)


def tuned(name: str, **changes: Any) -> ClusterJob:
    values: dict[str, Any] = {"batch": 10, "batches": (10, 640), "local_batches": (10, 10)}
    return job(name, **(values | {"max_slots": 64, "noise_scale": 1000.0} | changes))


def test_who_has_trained_with_none_has_its_least() -> None:
    fresh = [tuned("a"), tuned("b", min_slots=2)]
    decision = decide(RULE, fresh, nodes(4, 4))
    assert sizes(decision) == {"a": 1, "b": 2}
    # Two slots of at least 10 samples each; a trains with 10 as before, so nothing is said of it.
    assert decision.batches == {"b": 20}
    assert decision.reasons["a"] == (
        "has 1 slot on 1 node: 0.25 times the goodput of its fair share, with a batch of 10"
    )


def test_slots_are_doubled_at_most() -> None:
    # As fast with any number of slots, and each sample worth much: it wants all that it may have.
    for tried, most in ((1, 2), (2, 4), (3, 6)):
        decision = decide(RULE, [tuned("a", steps=seen(tried))], nodes(8))
        assert sizes(decision) == {"a": most}
        assert decision.batches == {"a": 10 * most}


def test_a_young_job_is_left_alone() -> None:
    # 4 slots in place of 2 are worth twice as many samples, nearly: S is large. After 10 s of age a
    # move makes 10 / 40 of it, after 270 s 0.9.
    present = {"a": (("n0", 2),)}
    one = tuned("a", steps=seen(2), batch=20, noise_scale=1e6)
    assert sizes(decide(RULE, [one], nodes(4), present, now_s=10)) == {"a": 2}
    assert sizes(decide(RULE, [one], nodes(4), present, now_s=270)) == {"a": 4}
    # It was moved 6 times: (270 - 180) / 300 = 0.3.
    often = {"moves": {"a": 6}}
    assert sizes(decide(RULE, [one], nodes(4), present, often, now_s=270)) == {"a": 2}


def test_moves_are_counted_from_the_first_start_on() -> None:
    one = tuned("a", steps=seen(1))
    first = decide(RULE, [one], nodes(4))
    assert first.state["moves"] == {"a": 0}
    same = decide(RULE, [one], nodes(4), first.placements, first.state, now_s=1)
    assert (same.placements, same.state["moves"]) == (first.placements, {"a": 0})
    # Its node has failed, and it is given slots again: that is a move.
    again = decide(RULE, [one], nodes(4), {}, first.state)
    assert again.state["moves"] == {"a": 1}
    assert decide(RULE, [], nodes(4), {}, again.state).state == again.state


def test_who_has_attained_least_goes_first() -> None:
    # One slot for two: both would have the same worth, and the older one has had more.
    jobs = [tuned("old", attained_slot_s=1000.0), tuned("new")]
    decision = decide(RULE, jobs, nodes(1))
    assert sizes(decision) in ({"old": 1}, {"new": 1})
    waiting = ({"old", "new"} - set(decision.placements)).pop()
    assert decision.reasons[waiting] == "waits: its slots are worth more to others"
    # Of those that may not be preempted, all keep what they have.
    firm = [replace(one, preemptible=False) for one in jobs]
    kept = decide(RULE, firm, nodes(1, 1), {"old": (("n1", 1),)})
    assert kept.placements["old"] == (("n1", 1),)


def test_models_are_fitted_once() -> None:
    one = tuned("a", steps=seen(1, 2))
    notes = decide(RULE, [one], nodes(4)).state
    assert notes["models"]["a"][0] == 2
    known = {"models": {"a": [2, 1.0, 0.5, 1e-8, 1e-8, 1e-8, 1e-8, 1.0]}}
    assert decide(RULE, [one], nodes(4), None, known).state["models"] == known["models"]
    more = replace(one, steps=seen(1, 2, 3))
    assert decide(RULE, [more], nodes(4), None, known).state["models"]["a"][0] == 3


def test_the_last_population_follows_jobs_and_nodes() -> None:
    jobs = [tuned(name, steps=seen(1)) for name in "abc"]
    first = decide(RULE, jobs, nodes(2, 2, 2))
    there = {name: at for name, at in first.placements.items() if name != "b"}
    then = decide(RULE, [jobs[2], jobs[0], tuned("d")], nodes(2, 2), there, first.state)
    assert set(then.state["jobs"]) == {"a", "c", "d"}
    assert (then.state["round"], then.state["nodes"]) == (2, ["n0", "n1"])


def test_without_nodes_all_wait() -> None:
    decision = decide(RULE, [tuned("a")], [])
    assert (decision.placements, decision.reasons) == ({}, {"a": "waits: no node is up"})


def test_a_seed_gives_one_answer() -> None:
    assert POLICIES["pollux"][0] == Pollux()
    assert with_run(Pollux(), 3, 0.3) == Pollux(seed=3)


@pytest.mark.parametrize("interval_s", [0.0, 60.0])
def test_jobs_of_known_duration_by_amdahls_law(interval_s: float) -> None:
    # Nine tenths are shared by the slots: a job alone on 8 tries 1, 2, 4 and 8 of them.
    elastic = {"min_slots": 1, "max_slots": 8, "parallel_fraction": 0.9}
    jobs = [submitted("a", 0, 5000, **elastic), submitted("b", 4000, 5000, **elastic)]
    done = result(RULE, jobs, nodes(4, 4), 1.0, interval_s=interval_s)
    assert [job.name for job in done.jobs] == ["a", "b"]
    tried = [sum(count for _, count in one.placement) for one in done.jobs[0].history]
    if interval_s:
        assert (tried[0], max(tried)) == (1, 8)
