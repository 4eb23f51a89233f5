"""A large plan is written in parts, each of which is whole by itself."""

from __future__ import annotations

from dataclasses import replace

from cluster_world import World

from edl.cluster.plan import ClusterPlan, PlanPart, plan_parts
from edl.cluster.records import Goal


def planned(world: World) -> tuple[ClusterPlan, list[PlanPart]]:
    world.reads_jobs(world.leader)
    found = world.plans(world.leader)
    return found, plan_parts(world.view(world.leader), found)


def test_jobs_that_share_a_host_are_written_together() -> None:
    world = World(2, 2, 2)
    for name, size in (("a", 2), ("b", 1), ("c", 3), ("d", 2)):
        world.submit(name, min=size, max=size)
    _, parts = planned(world)
    assert parts == [
        PlanPart(("d",), ()),  # it waits
        PlanPart(("a",), ("h0",)),
        PlanPart(("b", "c"), ("h1", "h2")),
    ]


def test_whatever_parts_are_written_the_next_plan_does_the_rest() -> None:
    """The world checks that no device is assigned or used twice, in any of these orders."""
    for chosen in range(8):
        world = World(2, 2, 2)
        for name, size in (("a", 2), ("b", 1), ("c", 3), ("d", 2)):
            world.submit(name, min=size, max=size)
        world.rounds(1 + chosen)
        world.want("c", Goal.HALT)
        for number in range(30):
            found, parts = planned(world)
            some = [part for at, part in enumerate(parts) if (at + number + chosen) % 2]
            lives = {job: found.lives[job] for part in some for job in part.jobs}
            hosts = {host: found.assigned[host] for part in some for host in part.hosts}
            world.leader.plan = replace(found, lives=lives, assigned=hosts, orders=())
            assert world.writes_plan(world.leader)
            if len(some) == len(parts):
                for order in found.orders:
                    world.carries_out(world.leader, order)
            world.hosts_work()
            world.now_s += 1
        world.want("c", Goal.RUN)
        world.until(lambda world=world: sum(map(world.slots, "abcd")) == 6)
