"""Nodes for jobs whose numbers of slots are decided: who runs keeps what it has."""

from __future__ import annotations

from typing import Any

from edl.cluster.placing import JobSize, place_stably, trimmed
from edl.spec import Sizes


def sized(name: str, size: int, present: dict[str, int] | None = None, **more: Any) -> JobSize:
    values = {"suggested": (), "limits": {"a": 9, "b": 9, "c": 9}, "fit": Sizes(1, 9).below}
    return JobSize(name, size, present or {}, **(values | more))


def test_a_job_keeps_its_slots_and_grows_on_its_own_node_first() -> None:
    jobs = [sized("x", 3, {"b": 2}), sized("y", 1, {"a": 1})]
    assert place_stably(jobs, {"a": 4, "b": 4}) == {"x": {"b": 3}, "y": {"a": 1}}


def test_a_job_that_shrinks_leaves_the_node_where_it_has_the_fewest() -> None:
    assert place_stably([sized("x", 3, {"a": 1, "b": 3})], {"a": 4, "b": 4}) == {"x": {"b": 3}}
    assert trimmed({"a": 2, "b": 2}, 3) == {"a": 2, "b": 1}
    assert trimmed({"a": 2, "b": 1}, 2, silent=["a"]) == {"a": 1, "b": 1}
    assert trimmed({"a": 2, "b": 0}, 5) == {"a": 2}


def test_a_job_that_starts_follows_the_policy_where_it_can() -> None:
    new = sized("x", 2, suggested=(("b", 1), ("c", 1)))
    assert place_stably([new], {"a": 4, "b": 4, "c": 4}) == {"x": {"b": 1, "c": 1}}
    assert place_stably([new, sized("y", 4, {"c": 4})], {"a": 4, "b": 4, "c": 4}) == {
        "y": {"c": 4},
        "x": {"a": 2},
    }


def test_else_it_gets_as_few_nodes_as_possible() -> None:
    assert place_stably([sized("x", 2)], {"a": 4, "b": 2}) == {"x": {"b": 2}}, "it fills a gap"
    assert place_stably([sized("x", 5)], {"a": 3, "b": 4, "c": 1}) == {"x": {"b": 4, "c": 1}}


def test_slots_of_jobs_that_are_served_later_are_taken_last() -> None:
    assert place_stably([sized("x", 2)], {"a": 2, "b": 2}, {"a": 1}) == {"x": {"b": 2}}
    assert place_stably([sized("x", 4)], {"a": 2, "b": 2}, {"a": 1}) == {"x": {"b": 2, "a": 2}}


def test_limits_hold_and_what_is_left_is_an_allowed_size() -> None:
    limited = sized("x", 4, limits={"a": 1, "b": 2}, fit=Sizes(1, 8, (1, 2, 4, 8)).below)
    assert place_stably([limited], {"a": 4, "b": 4, "c": 4}) == {"x": {"b": 2}}
    none = sized("x", 4, limits={"a": 1}, fit=Sizes(2, 8).below)
    assert place_stably([none], {"a": 4}) == {}


def test_what_a_node_no_longer_has_is_made_up_for_elsewhere() -> None:
    jobs = [sized("x", 4, {"a": 4}), sized("y", 1)]
    assert place_stably(jobs, {"a": 2, "b": 3}) == {"x": {"a": 2, "b": 2}, "y": {"b": 1}}
