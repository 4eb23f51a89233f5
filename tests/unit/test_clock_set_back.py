"""What the next leader of a cluster does when ZooKeeper's clock was set back by an hour."""

from __future__ import annotations

from cluster_world import SETTINGS, World, running

from edl.cluster.lifecycle import MAX_BACK_OFF_S, HostLimit, JobLifecycle, LifeState
from edl.cluster.records import AllocationRecord, Goal, HostAssignment, JobAssignment
from edl.cluster.view import allocation_by, assignment_by, life_by

HOUR_S = 3600.0


def next_leader(world: World) -> None:
    """Let another controller lead, by a clock that is an hour behind that of the last one."""
    world.new_leader()
    world.now_s -= HOUR_S


def seconds(world: World, limit_s: float) -> int:
    """Return how many rounds of a second make up a limit, and some more to act in."""
    return int(limit_s) + 10


def hour() -> World:
    """Return a cluster that has trained two jobs for more than an hour."""
    world = running(2, 2, a={"max": 2, "min": 2}, b={"max": 2, "min": 2})
    world.now_s += 2 * HOUR_S
    world.rounds(3)
    return world


def test_a_host_that_died_is_lost() -> None:
    world = hour()
    [host] = world.devices("a")
    world.machine_dies(host)
    world.offer_ends(host)
    world.round()
    next_leader(world)
    world.until(
        lambda: world.state("a") is LifeState.QUEUED, seconds(world, 2 * SETTINGS.lost_after_s)
    )


def test_a_job_that_failed_is_tried_again() -> None:
    world = running(2, a={"max": 2, "retries": 9})
    world.now_s += 2 * HOUR_S
    world.run_fails("a")
    world.until(lambda: world.state("a") is LifeState.QUEUED)
    next_leader(world)
    rounds = seconds(world, MAX_BACK_OFF_S)
    world.until(lambda: world.state("a") is LifeState.RUNNING, rounds)


def test_a_run_that_does_not_stop_is_ended() -> None:
    world = hour()
    [host] = world.devices("a")
    world.want("a", Goal.HALT)
    world.turn()
    assert world.state("a") is LifeState.HALTING
    next_leader(world)
    for _ in range(seconds(world, SETTINGS.halt_timeout_s)):
        world.turn()  # no agent hears that it is to stop
        world.now_s += 1.0
    assert world.machines[host].assigned.jobs["a"].ends


def test_times_that_lie_ahead_become_the_present() -> None:
    limits = {"h0": HostLimit(1, 9000.0), "h1": HostLimit(1, 150.0)}
    life = JobLifecycle(since_s=200.0, submitted_s=200.0, counted_s=200.0, limits=limits)
    right = {"h0": HostLimit(1, 160.0), "h1": HostLimit(1, 150.0)}
    assert life_by(100.0, life, 60.0) == JobLifecycle(
        since_s=100.0, submitted_s=200.0, counted_s=100.0, limits=right
    )
    job = JobAssignment("r", (0,), changed_s=200.0, idle_s=50.0)
    found = assignment_by(100.0, HostAssignment({"a": job}, 200.0))
    right_job = JobAssignment("r", (0,), changed_s=100.0, idle_s=50.0)
    assert found == HostAssignment({"a": right_job}, 100.0)
    allocation = AllocationRecord(changed_s={"a": 200.0, "b": 50.0})
    assert allocation_by(100.0, allocation).changed_s == {"a": 100.0, "b": 50.0}


def test_what_has_ended_and_what_is_right_stays_as_it_is() -> None:
    for life in (JobLifecycle(LifeState.ENDED, since_s=200.0), JobLifecycle(since_s=100.0)):
        assert life_by(100.0, life, 60.0) is life


def test_a_plan_writes_the_present_once() -> None:
    world = hour()
    world.want("a", Goal.HALT)
    world.turn()
    next_leader(world)
    found = world.turn()
    assert found.lives["a"].since_s == world.now_s
    assert found.changes == ()
    assert world.turn().lives == {}
