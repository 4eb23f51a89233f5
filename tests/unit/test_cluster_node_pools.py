"""Nodes of one speed are a pool; a job has its slots within one."""

from __future__ import annotations

import pytest
from clusters import job

from edl.cluster.placing import node_pools, parse_speeds, reserve, slowest_pool
from edl.cluster.state import ClusterState, Node
from edl.errors import UsageError

MACHINES = [Node("a", 4, "slow"), Node("b", 4, "fast"), Node("c", 2, "slow"), Node("d", 2)]
SPEEDS = {"fast": 4.0, "slow": 0.5}
FIRM = job("firm", preemptible=False)


def cluster(present, *jobs) -> ClusterState:
    return ClusterState([FIRM, *jobs], MACHINES, present, 0.0, {})


def test_pools_are_of_one_speed_each_the_fastest_first() -> None:
    pools = node_pools(cluster({"firm": (("a", 1), ("b", 2))}), SPEEDS, 4)
    assert [(pool.speed, sorted(pool.names), pool.free) for pool in pools] == [
        (4.0, ["b"], 2),
        (1.0, ["d"], 2),
        (0.5, ["a", "c"], 5),
    ]
    assert slowest_pool((("a", 1), ("b", 2)), pools) == 2
    assert slowest_pool((("d", 1),), pools) == 1
    assert slowest_pool((), pools) is None


def test_a_job_that_fits_into_no_pool_has_all_nodes() -> None:
    (pool,) = node_pools(cluster({}), SPEEDS, 7)
    assert ([node.name for node in pool.nodes], pool.speed, pool.free) == ([*"bdac"], 1.0, 12)
    (pool,) = node_pools(cluster({}), {}, 100)
    assert pool.nodes == tuple(MACHINES)


def test_jobs_are_placed_within_a_pool() -> None:
    now = cluster({"firm": (("a", 1),), "j": (("c", 2),), "k": (("a", 1), ("b", 1))})
    slow = node_pools(now, SPEEDS, 1)[-1]
    assert slow.place({"j": 2, "k": 2}, now) == {"j": (("c", 2),), "k": (("a", 2),)}


def test_slots_are_reserved_where_a_job_is_or_where_they_are_slowest() -> None:
    pools = node_pools(cluster({}), SPEEDS, 1)  # of 4, 2 and 6 slots
    least = {"here": 2, "wide": 6, "large": 4, "new": 2, "none": 1}
    homes = dict.fromkeys(least, None) | {"here": 2}
    found = {"here": 2, "large": 2, "new": 1, "none": 0}
    assert reserve(least, homes, pools, {"here", "wide"}) == (found, "wide")
    # Who may not be preempted is not reserved slots behind one without room.
    behind = {"here": 2, "new": 2, "none": 2}
    assert reserve(least, homes, pools, {"large"}) == (behind, "wide")
    del least["wide"]
    assert reserve(least, homes, pools, {"large"}) == (found, "")


def test_speeds_are_read_from_a_text() -> None:
    assert parse_speeds("") == {}
    assert parse_speeds("h100=4, t4=0.5") == {"h100": 4.0, "t4": 0.5}


@pytest.mark.parametrize("text", ["h100", "h100=fast", "=4", "h100=0", "h100=inf", "a=1,"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"is no speed of a kind of host; write NAME=SPEED"):
        parse_speeds(text)
