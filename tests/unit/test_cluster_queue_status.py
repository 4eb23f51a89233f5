"""What is shown of queues: their slots, and how fairly their jobs were treated."""

from __future__ import annotations

import io

import pytest
from cluster_world import Request, World
from rich.console import Console

from edl.cli.administration import queue_table
from edl.cluster.lifecycle import JobLifecycle, LifeResult, LifeState
from edl.cluster.queues import finish_time_fairness, queue_statuses
from edl.cluster.records import QueueRecord
from edl.cluster.view import JobView


def finished(name: str, came_s: float, went_s: float, slot_s: float, most: int = 8) -> JobView:
    life = JobLifecycle(
        LifeState.ENDED,
        result=LifeResult.FINISHED,
        submitted_s=came_s,
        ended_s=went_s,
        attained_slot_s=slot_s,
    )
    return JobView(name, 1, Request(max=most), life=life)


@pytest.mark.parametrize(
    ("jobs", "rhos"),
    [
        ([finished("a", 0, 100, 400)], [1.0]),  # alone on its part of 4 slots
        ([finished("a", 0, 100, 800)], [0.5]),  # it had twice its part
        ([finished("a", 0, 100, 100)], [4.0]),
        ([finished("a", 0, 100, 100, most=1)], [1.0]),  # it could have no more
        ([finished("a", 0, 100, 200), finished("b", 0, 100, 200)], [1.0, 1.0]),  # 2 slots each
        # a is alone for half of its time: 4 / 1.5 slots
        ([finished("a", 0, 100, 400), finished("b", 50, 100, 100)], [2 / 3, 1.0]),
        ([finished("a", 0, 100, 0)], []),
        ([JobView("a", 1, Request(), life=JobLifecycle(submitted_s=1.0))], []),
    ],
)
def test_rho_is_the_time_taken_by_the_time_alone(jobs: list[JobView], rhos: list[float]) -> None:
    assert finish_time_fairness(jobs, 4) == pytest.approx(rhos)


def test_queues_are_shown_with_their_surplus_and_waiting_jobs() -> None:
    world = World(4, 4)
    world.queues = {"prod": QueueRecord(2, weight=3.0), "dev": QueueRecord(4, most=6)}
    for name, queue in (("a", "prod"), ("b", "dev"), ("c", "x")):
        world.submit(name, min=2, queue=queue)
    world.submit("d", min=8, max=8, queue="dev")
    world.rounds(6)
    world.reads_jobs(world.leader)
    found = queue_statuses(world.view(world.leader))
    assert [(one.queue, one.is_set) for one in found] == [
        ("dev", True),
        ("prod", True),
        ("x", False),
    ]
    dev, prod, other = found
    assert (dev.quota, dev.guaranteed, dev.surplus, dev.waiting) == (4, 4, 0, 1)
    assert (prod.guaranteed, prod.surplus) == (2, 2)
    assert (other.slots, other.running, other.waiting) == (0, 0, 1)
    assert dev.mean_rho is None

    out = io.StringIO()
    Console(file=out, width=90).print(queue_table(found))
    rows = [line.split() for line in out.getvalue().splitlines() if line.strip()]
    assert ["prod", "2", "3", "-", "4", "2", "1", "0", "-"] in rows
    assert ["x", "not", "set", "1", "-", "0", "0", "0", "1", "-"] in rows


def test_a_cluster_without_queues_shows_none() -> None:
    world = World(4)
    world.submit("a")
    world.reads_jobs(world.leader)
    assert queue_statuses(world.view(world.leader)) == ()
