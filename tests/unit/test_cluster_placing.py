"""Which slots make up a size, and what no decision may break."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from clusters import job, nodes

from edl.cluster.placing import compact, place_packed, place_slots
from edl.cluster.policies.registry import POLICIES, policy_named
from edl.cluster.state import Allocation, ClusterJob, ClusterState, Node, Placements, violation
from edl.errors import UsageError


def cluster(
    machines: Sequence[Node], present: Placements | None = None, *jobs: ClusterJob
) -> ClusterState:
    return ClusterState(jobs, machines, present or {}, 0.0, {})


def test_the_emptiest_node_is_filled_first() -> None:
    # 6 slots: 4 of the empty n0, then 2 of n1. Free are n1: 2, n2: 4, so b takes n2.
    placed = place_slots({"a": 6, "b": 2}, cluster(nodes(4, 4, 4)))
    assert placed == {"a": (("n0", 4), ("n1", 2)), "b": (("n2", 2),)}


def test_who_has_its_size_keeps_its_slots_before_others_are_placed() -> None:
    present = {"b": (("n0", 3),)}
    # b comes last and keeps n0. Free are n0: 1, n1: 4: a takes 4 of n1, then the 1 of n0.
    assert place_slots({"a": 5, "b": 3}, cluster(nodes(4, 4), present)) == {
        "a": (("n1", 4), ("n0", 1)),
        "b": (("n0", 3),),
    }


def test_who_changes_its_size_or_loses_a_node_is_placed_anew() -> None:
    present = {"a": (("n0", 2),), "b": (("gone", 1),)}
    # a needs 3 now: n0 and n1 are both empty then, and n0 is the first. b takes n1, the emptier.
    assert place_slots({"a": 3, "b": 1}, cluster(nodes(4, 4), present)) == {
        "a": (("n0", 3),),
        "b": (("n1", 1),),
    }


def test_packed_jobs_lie_on_few_nodes_the_largest_first() -> None:
    # b takes an empty node, a what fits best: the 2 of n1. c would fit into n2 alone.
    placed = place_packed({"a": 2, "b": 4, "c": 1}, cluster(nodes(4, 2, 3)))
    assert placed == {"b": (("n0", 4),), "a": (("n1", 2),), "c": (("n2", 1),)}
    # 5 fit into no node: the emptiest is filled, and the last slot is put where least stays free.
    assert place_packed({"a": 5}, cluster(nodes(4, 2, 3))) == {"a": (("n0", 4), ("n1", 1))}


def test_who_grows_stays_on_its_node_if_another_is_not_better() -> None:
    present = {"a": (("n1", 2),), "b": (("n2", 1),)}
    # b keeps its slot. n0 and n1 would both be full with a.
    placed = place_packed({"a": 4, "b": 1}, cluster(nodes(4, 4, 4), present))
    assert placed == {"a": (("n1", 4),), "b": (("n2", 1),)}


def test_a_size_of_0_has_no_slots() -> None:
    assert place_packed({"a": 0}, cluster(nodes(4), {"a": (("n0", 1),)})) == {}
    assert place_slots({"a": 0}, cluster(nodes(4), {"a": (("n0", 1),)})) == {}


def test_compact() -> None:
    assert [compact(slots, 4) for slots in (1, 4, 6, 8)] == [(1,), (4,), (4, 2), (4, 4)]


def test_the_slots_of_a_cluster() -> None:
    seen = [(state.slots, state.per_node) for state in map(cluster, ([], nodes(4, 2)))]
    assert seen == [(0, 1), (6, 4)]


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"no policy 'sjf'; use one of fifo, fifo_backfill"):
        policy_named("sjf")
    assert all(policy_named(name) is POLICIES[name][0] for name in POLICIES)


JOBS = [job("a", min_slots=2, max_slots=4), job("b", preemptible=False)]
WHY = {"a": "so", "b": "so"}


@pytest.mark.parametrize(
    ("allocation", "reasons", "said"),
    [
        ({}, WHY, None),
        ({"a": (("n0", 2),), "b": (("n0", 2),)}, WHY, None),
        ({"c": (("n0", 1),)}, WHY, "c has slots and is no job"),
        ({"a": (("n0", 1),)}, WHY, "a has 1 slots; it may have 2 to 4"),
        ({"a": (("n0", 3), ("n1", 2))}, WHY, "a has 5 slots; it may have 2 to 4"),
        ({"a": (("n0", 4),), "b": (("n0", 1),)}, WHY, "5 slots of node n0 are given, and it has 4"),
        ({"a": (("n2", 2),)}, WHY, "2 slots of node n2 are given, and it has 0"),
        ({"a": (("n0", 2), ("n1", 0))}, WHY, "a has 0 slots on node n1"),
        ({"a": (("n0", 2),)}, {"a": "so"}, "b is given no reason"),
    ],
)
def test_what_a_decision_must_keep(allocation, reasons, said) -> None:
    assert violation(Allocation(allocation, reasons), cluster(nodes(4, 4), {}, *JOBS)) == said


def test_who_may_not_be_preempted_keeps_its_slots() -> None:
    present = {"b": (("n0", 1),)}
    assert violation(Allocation(present, WHY), cluster(nodes(4), present, *JOBS)) is None
    said = violation(Allocation({"b": (("n1", 1),)}, WHY), cluster(nodes(4, 4), present, *JOBS))
    assert said == "b may not be preempted, and would lose its slots"


@pytest.mark.parametrize(
    ("batches", "said"),
    [
        ({}, None),  # it keeps its batch of 32, which 8 slots can share
        ({"t": 64}, None),
        ({"t": 12}, "t has 4 slots; at most 3 can share its batch of 12"),
        ({"t": 128}, "t trains with a batch of 128; it may be 8 to 64"),
        ({"t": 16, "c": 1}, "c has a batch and is no job"),
    ],
)
def test_batches_are_within_the_range_and_large_enough_for_the_slots(batches, said) -> None:
    tuned = job("t", batch=32, batches=(8, 64), local_batches=(4, 16))
    assert [tuned.most_slots(batch) for batch in (8, 16, 64)] == [2, 4, 8]
    decision = Allocation({"t": (("n0", 4),)}, {"t": "so"}, batches=batches)
    assert violation(decision, cluster(nodes(4), {}, tuned)) == said
