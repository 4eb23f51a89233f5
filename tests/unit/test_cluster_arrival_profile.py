"""With how many workers a new job trains while its throughput is measured, and for how long."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cluster_world import Hints, Profile, World

from edl.cluster.allocate import ProfileProgress, next_size
from edl.cluster.lifecycle import LifeState
from edl.cluster.plan import plan
from edl.cluster.records import Goal
from edl.spec import Sizes

RUNNING = LifeState.RUNNING


def sizes_over(world: World, seconds: int, job: str = "a") -> list[int]:
    found: list[int] = []
    for _ in range(seconds):
        world.round()
        if (size := world.workers(job)) not in found[-1:]:
            found.append(size)
    return found


def profiled(*slots: int, policy: str = "max_min", **request: object) -> World:
    world = World(*slots, policy=policy)
    world.submit("a", left=1e6, **{"min": 1, "max": 8, "profile": Profile(), **request})
    world.until(lambda: world.state("a") is RUNNING)
    return world


# --- the sizes


@pytest.mark.parametrize(
    ("known", "present", "most", "size"),
    [
        ((), 8, 8, 8),  # the first size is measured where it is
        ((8,), 8, 8, 1),
        ((1, 8), 1, 8, 3),  # 2 and 3 are as far from both; more workers tell more
        ((1, 3, 8), 3, 8, None),
        ((4,), 4, 8, 1),
        ((1, 4), 1, 8, 8),
        ((1, 4), 1, 4, 2),
        ((1,), 1, 1, None),  # there is no other
        ((8,), 8, 4, 1),
        ((), 8, 4, None),  # it is about to lose half of its slots
    ],
)
def test_the_next_size_is_the_farthest_from_those_that_are_measured(
    known: tuple[int, ...], present: int, most: int, size: int | None
) -> None:
    assert next_size(ProfileProgress(known, True), Sizes(1, 8), present, most, 3) == size


def test_only_allowed_sizes_are_measured() -> None:
    settled = ProfileProgress((8,), True)
    assert next_size(settled, Sizes(2, 8, size_step=2), 8, 8, 3) == 2
    assert next_size(settled, Sizes(1, 8, (4, 8)), 8, 8, 3) == 4
    assert next_size(settled, Sizes(8, 8), 8, 8, 3) is None


def test_a_size_is_kept_until_it_has_been_trained_with_for_long_enough() -> None:
    assert next_size(ProfileProgress((8,), False), Sizes(1, 8), 8, 8, 3) == 8


# --- whole jobs


@pytest.mark.parametrize("policy", ["max_min", "edl"])
def test_a_job_of_unknown_speed_is_measured_and_gets_its_slots_again(policy: str) -> None:
    world = profiled(4, 4, policy=policy)
    world.round()
    assert world.reasons["a"].startswith("is profiled with 8 workers, 1 of 3 sizes measured: ")
    world.until(lambda: world.workers("a") == 3)
    assert sizes_over(world, 20) == [3, 8]
    assert {step.workers for step in world.jobs["a"].measured.steps} == {8, 1, 3}
    assert "profiled" not in world.reasons["a"]
    assert world.allocation.profiled == {}
    assert sizes_over(world, 60) == [8]


def test_without_the_key_nothing_is_measured() -> None:
    assert sizes_over(profiled(4, 4, profile=None), 60) == [8]


def test_nothing_is_measured_where_the_speed_is_known() -> None:
    """By the user, or from a job that had the name before."""
    assert sizes_over(profiled(4, 4, hints=Hints(samples_per_s={1: 1.0})), 60) == [8]
    world = World(4, 4)
    job = world.submit("a", left=1e6, max=8, profile=Profile())
    job.measured = replace(job.measured, curve={2: 20.0})
    assert sizes_over(world, 60) == [8]


def test_it_grows_on_slots_that_nobody_has() -> None:
    world = profiled(4, 4, policy="fifo", np=2)
    assert sizes_over(world, 40) == [2, 8, 4, 2]


def test_it_grows_on_no_slot_of_others_and_not_while_somebody_waits() -> None:
    world = profiled(4, 4, policy="fifo", np=2)
    world.submit("b", left=1e6, min=4, max=4)
    assert max(sizes_over(world, 40)) <= 4
    assert world.workers("b") == 4

    world = profiled(4, 4, policy="fifo", np=2)
    world.submit("b", left=1e6, min=4, max=4)
    world.submit("c", left=1e6, min=4, max=4)
    assert max(sizes_over(world, 40)) == 2
    assert world.state("c") is LifeState.QUEUED


def test_it_yields_at_once() -> None:
    world = profiled(4, 4, policy="fifo", np=2)
    world.until(lambda: world.workers("a") == 8)
    world.submit("b", left=1e6, min=6, max=6)
    world.until(lambda: world.workers("b") == 6, rounds=6)
    assert world.workers("a") == 2


def test_it_ends_within_its_limit() -> None:
    """A size with which no worker comes is not measured."""
    world = profiled(2, 2, policy="fifo", np=2, max=4, profile=Profile(within_s=30.0))
    broken = next(name for name in world.machines if "a" not in world.machines[name].agents)
    world.machines[broken].broken_for.add("a")
    world.until(lambda: world.slots("a") == 4)
    began_s = world.jobs["a"].life.since_s
    world.until(lambda: world.slots("a") == 2 and not world.allocation.profiled)
    assert world.now_s - began_s <= 33
    assert sizes_over(world, 40) == [2]


def test_the_limit_holds_for_all_runs_together() -> None:
    world = profiled(4, 4)
    until_s = world.jobs["a"].life.profile_until_s
    world.until(lambda: world.workers("a") == 1)
    world.want("a", Goal.HALT)
    world.until(lambda: world.state("a") is LifeState.HALTED)
    world.now_s = until_s
    world.want("a", Goal.RUN)
    world.until(lambda: world.state("a") is RUNNING)
    assert world.jobs["a"].life.profile_until_s == until_s
    assert sizes_over(world, 40) == [8]


def test_a_new_leader_goes_on_with_it() -> None:
    world = profiled(4, 4)
    world.until(lambda: world.workers("a") == 1)
    world.new_leader()
    world.machines["h0"].daemon = False
    world.host_returns("h0")
    assert sizes_over(world, 40) == [1, 3, 8]


def test_it_rests_neither_before_nor_after_its_changes() -> None:
    """A cool-down is for what the policy changes."""
    world = profiled(4, 4, cool_down_s=50.0)
    assert sizes_over(world, 40) == [8, 1, 3, 8]
    world.submit("b", left=1e6, max=8)
    assert sizes_over(world, 20) == [8], "the last change was the policy's"


def test_it_begins_when_the_job_may_grow_again() -> None:
    world = profiled(4, 4, snooze_s=20.0)
    assert sizes_over(world, 18) == [8]
    assert sizes_over(world, 40) == [8, 1, 3, 8]


def test_the_next_turn_is_when_a_size_has_been_kept_for_long_enough() -> None:
    world = profiled(4, 4)
    world.rounds(2)
    world.reads_jobs(world.leader)
    found = plan(world.view(world.leader), world.policy, world.now_s)
    changed_s = world.allocation.changed_s["a"]
    assert world.now_s < found.next_s <= max(changed_s, world.jobs["a"].life.since_s) + 5.0
