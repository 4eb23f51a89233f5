"""Jobs that cannot start: that is their own fault, or that of a host, which is left then."""

from __future__ import annotations

import pytest
from cluster_world import World

from edl.cluster.lifecycle import LifeResult, LifeState

ONE = {"min": 1, "max": 2}


def starting(*slots: int, **request: int) -> World:
    world = World(*slots)
    world.submit("a", **{**ONE, **request})
    begins(world)
    return world


def begins(world: World) -> None:
    for _ in range(20):
        run = world.jobs["a"].run
        if run is not None and run.token == world.jobs["a"].life.run and not run.state.over:
            return
        world.now_s += 1.0
        world.turn()
        for host in world.machines:
            world.host_works(host, agents=False)
    raise AssertionError(str(world))


def fails(world: World, reason: str, code: int = 1) -> list[str]:
    """Let the run of the job end before its first step; return the hosts that it was on."""
    hosts = list(world.devices("a"))
    world.run_fails("a", reason, code)
    world.turn()
    return hosts


@pytest.mark.parametrize("code", [2, 78, 127])
def test_a_command_that_can_start_nowhere_is_not_tried_again(code: int) -> None:
    world = starting(2, retries=3)
    fails(world, "there is no program 'pythn' on PATH", code)
    assert world.state("a") is LifeState.ENDED
    life = world.jobs["a"].life
    assert (life.result, life.runs, life.exit_code) == (LifeResult.FAILED, 1, code)
    assert "no program 'pythn'" in life.reason


def test_it_is_tried_on_a_second_host_and_on_no_third() -> None:
    world = starting(2, 2, 2, retries=3)
    tried = fails(world, "no such file", 2)
    begins(world)
    tried += fails(world, "no such file", 2)
    assert world.state("a") is LifeState.ENDED
    assert len(set(tried)) == 2
    assert not any(one.assigned.failures for one in world.machines.values()), "the job's own fault"


def test_a_failure_that_another_host_may_not_have_uses_up_no_retry() -> None:
    world = starting(2, 2, retries=0)
    [bad] = fails(world, "no GPU driver here")
    world.until(lambda: world.state("a") is LifeState.RUNNING)
    assert bad not in world.devices("a")
    failure = world.machines[bad].assigned.failures["a"]
    assert (failure.reason, failure.blamed) == ("no GPU driver here", True)
    world.rounds(100)
    assert bad not in world.devices("a"), "it is not given the host again"


def test_after_a_refusal_of_its_only_host_the_run_fails_at_once() -> None:
    world = World(2)
    world.machines["h0"].denies.add("a")
    world.submit("a", retries=0, **ONE)
    world.until(lambda: world.state("a") is LifeState.ENDED, rounds=10)
    assert "host h0: --slots is wrong" in world.jobs["a"].life.reason


def test_four_healthy_workers_do_not_wait_for_two_that_fail() -> None:
    world = World(4, 2)
    world.machines["h1"].failing = "no GPU driver here"
    world.submit("a", min=1, max=6)
    world.until(lambda: world.devices("a") == {"h0": (0, 1, 2, 3)}, rounds=12)
    assert world.state("a") is LifeState.RUNNING
    assert world.machines["h1"].assigned.failures["a"].reason == "no GPU driver here"


def test_a_job_that_needs_them_fails_with_the_reason() -> None:
    world = World(4, 2)
    world.machines["h1"].failing = "no GPU driver here"
    world.submit("a", min=6, max=6, retries=0)
    world.until(lambda: world.state("a") is LifeState.ENDED, rounds=12)
    assert "host h1: no GPU driver here" in world.jobs["a"].life.reason


def blamed(world: World, job: str) -> bool:
    failure = world.machines["h1"].assigned.failures.get(job)
    return failure is not None and failure.blamed


def test_a_host_is_taken_out_after_failures_of_three_jobs_and_comes_back_by_itself() -> None:
    world = World(6, 6)
    world.machines["h1"].failing = "no GPU driver here"
    for name in "abc":
        assert not world.machines["h1"].assigned.out
        world.submit(name, min=1, max=12)
        world.until(lambda name=name: blamed(world, name))
    world.round()
    assert world.machines["h1"].assigned.out == "jobs a, b, c could not start: no GPU driver here"
    world.submit("d", min=1, max=12)
    world.rounds(100)
    assert "d" not in world.machines["h1"].assigned.failures
    world.machines["h1"].failing = ""
    world.until(lambda: sum(map(world.slots, "abcd")) == 12, rounds=400)


def test_a_job_that_was_to_move_to_a_host_that_fails_trains_on_where_it_is() -> None:
    world = World(2, 2, policy="edl")
    world.machines["h0"].labels = {"disk": "ssd"}
    world.machines["h1"].drained = True
    world.submit("a", min=2, max=2, preemptible=None)
    world.until(lambda: world.state("a") is LifeState.RUNNING)
    run = world.jobs["a"].run
    assert run is not None
    run.saves = False
    world.machines["h1"].failing = "no GPU driver here"
    world.machines["h1"].drained = False
    world.submit("b", min=2, max=2, labels={"disk": "ssd"})
    world.rounds(60)
    assert world.machines["h1"].assigned.failures["a"].reason == "no GPU driver here"
    assert world.jobs["a"].run is run, f"it was halted, and has lost its training: {world}"
    assert world.devices("a") == {"h0": (0, 1)}
    assert world.state("b") is LifeState.QUEUED
