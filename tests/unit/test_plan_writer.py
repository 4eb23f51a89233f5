"""What the leader writes of a plan whose parts are too large for one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from cluster_world import World

from edl.cluster.controller.controller import PlanWriter
from edl.cluster.lifecycle import ClusterEvent, ClusterEventKind, LifeState
from edl.cluster.nodes import ClusterPaths
from edl.cluster.plan import ClusterPlan
from edl.cluster.writer import byte_count
from edl.zookeeper.election import Write


class Leader:
    def __init__(self, world: World, most_bytes: int) -> None:
        self.world = world
        self.most_bytes = most_bytes
        self.said: list[str] = []
        self._paths = ClusterPaths("main")
        store: Any = SimpleNamespace(paths=self._paths, events=SimpleNamespace(new=self._event))
        self._writer = PlanWriter(store, SimpleNamespace(commit=self._commit), self.said.append)

    def _event(self, kind: ClusterEventKind, reason: str, *about: Any) -> ClusterEvent:
        return ClusterEvent(0.0, kind, reason, *about[:2])

    def _commit(self, writes: Sequence[Write]) -> bool:
        decision = self._paths.allocation
        assert all(one.path == decision for one in writes) or byte_count(writes) <= self.most_bytes
        return True

    def round(self) -> ClusterPlan:
        world, leader = self.world, self.world.leader
        world.reads_jobs(leader)
        read: Any = SimpleNamespace(
            view=world.view(leader),
            job_named={name: SimpleNamespace(name=name, life_version=0) for name in world.jobs},
            secrets={},
            snapshot=SimpleNamespace(allocation_version=0),
        )
        written = self._writer.write(read, world.plans(leader))
        assert written is not None
        leader.plan = written[0]
        assert world.writes_plan(leader)
        for order in leader.orders:
            world.carries_out(leader, order)
        world.hosts_work()
        for job in list(world.jobs):
            world.run_steps(job)
        world.now_s += 1.0
        return written[0]


def leader(monkeypatch: pytest.MonkeyPatch, world: World, most_bytes: int) -> Leader:
    for limit in ("MAX_BYTES", "TRANSACTION_BYTES"):
        monkeypatch.setattr(f"edl.cluster.controller.controller.{limit}", most_bytes)
    return Leader(world, most_bytes)


def test_a_part_that_does_not_fit_is_left_out_and_holds_up_no_other_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(*[1] * 9, policy="fifo")
    world.machines["h8"].labels = {"gpu": "new"}
    world.submit("wide", min=8, max=8)
    world.submit("small", left=3, max=1, labels={"gpu": "new"})
    one = leader(monkeypatch, world, 1500)
    for _ in range(10):
        found = one.round()
        assert all(order.job != "wide" for order in found.orders)
    assert world.state("wide") is LifeState.QUEUED
    assert world.slots("wide") == 0
    assert world.state("small") is LifeState.ENDED
    (said,) = one.said
    assert said == (
        "cannot write what changes together for wide on h0, h1, h2, h3, h4 and 3 more: "
        "it has more than 1500 bytes"
    )
    one = leader(monkeypatch, world, 1_000_000)
    for _ in range(3):
        one.round()
    assert world.state("wide") is LifeState.RUNNING
