"""Queues in the plan of a cluster, as stories: what is lent, and how it comes back."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_world import Machine, World

from edl.cluster.lifecycle import LifeState
from edl.cluster.policies.registry import POLICIES
from edl.cluster.records import QueueRecord
from edl.cluster.state import Allocation, ClusterState

RUNNING = LifeState.RUNNING
PROD, DEV = {"queue": "prod"}, {"queue": "dev"}
LIVE = [name for name in POLICIES if not name.startswith("jsa_")]
RIGID = ("fifo", "priority", "tiresias")  # they give a job the slots that it asks for, or none


def cluster(*slots: int, policy: Any = "max_min", prod: int = 4, dev: int = 0) -> World:
    world = World(*slots, policy=policy)
    world.queues = {"prod": QueueRecord(prod), "dev": QueueRecord(dev)}
    return world


def settle(world: World, rounds: int = 12) -> World:
    world.rounds(rounds)
    return world


def sizes(world: World) -> dict[str, int]:
    return {name: world.slots(name) for name in world.jobs}


def halted(world: World) -> list[str]:
    return [line for line in world.story if "running -> halting" in line]


# --- lending


def test_idle_slots_are_lent_and_said_to_be_surplus() -> None:
    world = cluster(4, 4)
    world.submit("d", max=8, **DEV)
    settle(world)
    assert sizes(world) == {"d": 8}
    assert "; 8 of its slots are beyond the quota of 0 of queue dev" in world.reasons["d"]
    assert world.turn().surplus == {"d": 8}


def test_what_no_quota_needs_goes_by_weight() -> None:
    world = cluster(8, prod=2)
    world.queues["dev"] = QueueRecord(0, weight=2.0)
    world.submit("p", max=8, **PROD)
    world.submit("d", max=8, **DEV)
    settle(world)
    assert sizes(world) == {"p": 4, "d": 4}  # 2 of the quota, and 6 as 1 to 2


def test_a_queue_has_at_most_its_most() -> None:
    world = cluster(8, prod=2)
    world.queues["prod"] = QueueRecord(2, most=3)
    world.submit("p", max=8, profile=None, **PROD)
    settle(world)
    assert sizes(world) == {"p": 3}


def test_what_a_queue_cannot_use_goes_to_others() -> None:
    """The share of prod is its quota and half of the rest, and its job needs more."""
    world = cluster(8, prod=4)
    world.submit("d", max=8, **DEV)
    world.submit("p", min=7, max=7, **PROD)
    settle(world)
    assert sizes(world) == {"d": 8, "p": 0}
    assert (
        "it needs 7 slots; queue prod may have 6 slots now, and its quota is 4"
        in (world.reasons["p"])
    )
    assert not halted(world)


def test_a_job_of_a_queue_without_a_record_has_no_quota() -> None:
    world = cluster(4, prod=4)
    world.submit("p", max=4, **PROD)
    world.submit("x", max=4)
    settle(world)
    assert sizes(world) == {"p": 4, "x": 0}


def test_a_priority_counts_within_a_queue_only() -> None:
    world = cluster(6, prod=4)
    world.submit("p", max=4, **PROD)
    world.submit("d", max=6, **DEV)
    world.want("d", priority=9)
    settle(world)
    assert sizes(world) == {"p": 4, "d": 2}


# --- reclaim


@pytest.mark.parametrize("policy", LIVE)
def test_borrowers_shrink_and_none_is_halted(policy: str) -> None:
    world = cluster(4, 4, policy=policy, prod=4)
    world.submit("d1", min=1, max=4, np=2, **DEV)
    world.submit("d2", min=1, max=4, np=2, **DEV)
    world.submit("d3", min=1, max=4, np=2, **DEV)
    world.submit("d4", min=1, max=4, np=2, **DEV)
    settle(world)
    assert sum(sizes(world).values()) == 8
    world.submit("p", min=4, max=4, **PROD)
    settle(world)
    assert world.state("p") is RUNNING
    assert sizes(world) == {"d1": 1, "d2": 1, "d3": 1, "d4": 1, "p": 4}
    assert not halted(world)
    world.rounds(3, seconds=40.0)
    assert not halted(world), "nor when the policy is asked again"


def test_the_youngest_borrowers_are_halted_where_shrinking_is_not_enough() -> None:
    world = cluster(4, 4, prod=6)
    for name in ("d1", "d2", "d3", "d4"):
        world.submit(name, min=2, max=2, **DEV)
    settle(world)
    assert sum(sizes(world).values()) == 8
    world.submit("p", min=3, max=3, **PROD)
    settle(world, 20)
    assert sizes(world) == {"d1": 2, "d2": 2, "d3": 0, "d4": 0, "p": 3}
    assert len(halted(world)) == 2
    why = "it needs 2 slots, and earlier jobs have all others; queue dev may have 5 slots now, and"
    assert all(why in line for line in halted(world))


def test_of_two_borrowers_the_one_of_the_lower_priority_is_halted() -> None:
    world = cluster(4, prod=2)
    world.submit("d1", min=2, max=2, **DEV)
    world.submit("d2", min=2, max=2, **DEV)
    world.want("d2", priority=1)
    settle(world)
    world.submit("p", min=2, max=2, **PROD)
    settle(world, 20)
    assert sizes(world) == {"d1": 0, "d2": 2, "p": 2}


def test_a_job_within_its_quota_keeps_its_slots() -> None:
    world = cluster(4, 4, prod=4, dev=4)
    world.submit("d1", min=4, max=4, **DEV)
    world.submit("d2", min=4, max=4, **DEV)
    settle(world)
    for name in ("p1", "p2", "p3"):
        world.submit(name, min=4, max=4, **PROD)
    settle(world, 20)
    assert sizes(world)["d1"] == 4
    assert [sizes(world)[name] for name in ("p1", "p2", "p3")] == [4, 0, 0]


def test_min_run_and_cool_down_keep_no_borrowed_slots() -> None:
    world = cluster(4, prod=4)
    world.submit("d", min=1, max=4, min_run_s=1e6, cool_down_s=1e6, **DEV)
    settle(world)
    world.submit("p", min=2, max=4, **PROD)
    settle(world, 20)
    assert sizes(world) == {"d": 0, "p": 4}


def test_they_keep_slots_of_the_quota() -> None:
    world = cluster(4, prod=2, dev=2)
    world.submit("d", min=1, max=2, min_run_s=1e6, cool_down_s=1e6, **DEV)
    settle(world)
    world.submit("p", min=2, max=4, **PROD)
    settle(world, 20)
    assert sizes(world) == {"d": 2, "p": 2}


def test_a_job_that_starts_keeps_its_slots_until_it_trains() -> None:
    world = cluster(4, prod=4)
    world.submit("d", max=4, **DEV)
    world.turn()
    world.submit("p", min=2, max=4, **PROD)
    world.turn()
    assert world.reasons["d"].startswith("keeps its slots while it starts; 4 of its slots are")
    settle(world, 20)
    assert sizes(world)["p"] >= 3


def test_a_job_that_may_not_be_preempted_gets_slots_of_the_quota_only() -> None:
    world = cluster(4, 4, prod=4, dev=2)
    world.submit("d", min=1, max=8, preemptible=False, **DEV)
    world.submit("e", min=1, max=8, preemptible=False, **DEV)
    settle(world)
    assert sizes(world) == {"d": 2, "e": 0}
    assert world.reasons["e"].endswith(
        "it may not be preempted, so it gets slots of the quota of queue dev only, of which 0 of 2 "
        "are left for it, and it needs 1"
    )


def test_smaller_jobs_that_come_later_wait_for_one_that_may_not_be_preempted() -> None:
    world = cluster(4, 4, prod=4, dev=3)
    rigid: dict[str, Any] = {"preemptible": False, **DEV}
    world.submit("first", left=20, max=1, **rigid)
    settle(world, 3)
    world.submit("large", min=3, max=3, **rigid)
    world.submit("small", max=1, **rigid)
    settle(world, 3)
    assert sizes(world) == {"first": 1, "large": 0, "small": 0}
    assert world.reasons["small"].endswith(
        "and those that are left are kept for job large, which comes before it and needs 3"
    )
    world.until(lambda: world.state("large") is RUNNING, rounds=60)
    assert world.reasons["small"].endswith("of which 0 of 3 are left for it, and it needs 1")


def test_a_job_that_has_lost_a_host_gets_others_within_the_quota_only() -> None:
    world = cluster(2, 2, prod=0, dev=4)
    world.submit("d", min=2, max=8, preemptible=False, **DEV)
    settle(world)
    assert sizes(world) == {"d": 4}
    world.machine_dies("h1")
    world.offer_ends("h1")
    for host in ("h2", "h3"):
        world.machines[host] = Machine(4)
    settle(world, 60)
    assert world.workers("d") == 4, "it had 4 of the quota, and idle slots are not for it"


@pytest.mark.parametrize("in_queue", [False, True])
def test_a_job_that_has_lost_a_host_is_not_preempted_either(in_queue: bool) -> None:
    world = cluster(2, 2, prod=0, dev=4)
    if not in_queue:
        world.queues = {}
    world.submit("d", min=1, max=4, preemptible=False, **DEV)
    settle(world)
    assert sizes(world) == {"d": 4}
    world.machine_dies("h1")
    world.offer_ends("h1")
    world.submit("e", min=2, max=2, **DEV)
    world.want("e", priority=9)
    settle(world, 60)
    assert not halted(world), str(world)
    assert world.workers("d") > 0


def test_while_the_policy_cannot_be_asked_nothing_is_taken_back() -> None:
    from edl.cluster.allocate import KeepAllocation

    world = cluster(4, prod=4)
    world.submit("d", max=4, **DEV)
    settle(world)
    world.policy = KeepAllocation("it is broken")
    world.submit("p", max=4, **PROD)
    settle(world)
    assert sizes(world) == {"d": 4, "p": 0}


def test_a_changed_quota_counts_at_once() -> None:
    world = cluster(8, prod=4, dev=4)
    world.submit("p", max=8, **PROD)
    world.submit("d", max=8, **DEV)
    settle(world)
    world.queues["prod"] = QueueRecord(6)
    world.queues["dev"] = QueueRecord(2)
    settle(world, 6)
    assert sizes(world) == {"p": 6, "d": 2}


def test_a_policy_that_breaks_a_rule_in_one_queue_changes_nothing() -> None:
    def wrong(state: ClusterState) -> Allocation:
        return Allocation({}, {})

    world = cluster(4, prod=4)
    world.submit("p", max=4, **PROD)
    settle(world)
    world.policy = wrong
    world.submit("d", max=4, **DEV)
    settle(world)
    assert sizes(world) == {"p": 4, "d": 0}
    assert "breaks a rule" in world.reasons["d"]
