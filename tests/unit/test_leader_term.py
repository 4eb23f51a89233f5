"""What a leader finds out about the ring is written only while it leads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from shown_job import snapshot

from edl.config import Config
from edl.errors import LeadershipLost
from edl.events import Event, EventKind
from edl.job.leader import LeaderTerm
from edl.job.snapshot import Snapshot
from edl.job.stall import IN_USER_CODE, Activity
from edl.policy.scaling_profile import ScalingProfile
from edl.policy.stragglers import RingReport
from edl.records import WorkerProgress
from edl.zookeeper.election import Write
from edl.zookeeper.nodes import JobNodes


@dataclass
class Term:
    lost: bool = False
    term: int = 2
    written: list[Write] = field(default_factory=list)

    def commit(self, writes: Sequence[Write]) -> None:
        if self.lost:
            raise LeadershipLost("term 2 is over")
        self.written += writes

    try_commit = commit


class Store:
    session = SimpleNamespace(granted_s=6.0)
    events = SimpleNamespace(trim=lambda keep: 0)
    members = SimpleNamespace(forget_evicted=lambda workers: None)
    policy = SimpleNamespace(learned=ScalingProfile)
    nodes = SimpleNamespace(run="r", paths=JobNodes(cast(Any, None), "digits").paths)

    def snapshot(self, wake: Callable[[], None]) -> Snapshot:
        return snapshot((0,))


class Leader:
    def __init__(self) -> None:
        self.now_s, self.term, self.queued = 0.0, Term(), list[Event]()
        progress = WorkerProgress(generation=5, size=1, step=1494, median_step_s=0.05)
        self.turns = LeaderTerm(
            Config(address="127.0.0.1"),
            cast(Any, Store()),
            cast(Any, self.term),
            0,
            lambda: progress,
            lambda: Activity(IN_USER_CODE, "train.py:44", "step", 0.1),
            RingReport,
            self.queued.append,
            lambda: None,
            clock=lambda: self.now_s,
        )

    def turn(self) -> list[str]:
        self.turns.turn(lambda: None)
        return self.kinds

    @property
    def kinds(self) -> list[str]:
        written = [str(one.value["kind"]) for one in self.term.written if "kind" in one.value]
        return [*(str(one.kind) for one in self.queued), *written]


def test_a_stall_is_written_once() -> None:
    leader = Leader()
    assert leader.turn() == [EventKind.LEADER]
    leader.now_s = 60.0
    assert leader.turn() == [EventKind.LEADER, EventKind.STALLED]
    assert leader.turn() == [EventKind.LEADER, EventKind.STALLED]


def test_a_leader_that_was_suspended_tells_of_no_stall_of_the_ring_that_went_on() -> None:
    leader = Leader()
    leader.turn()
    leader.now_s, leader.term.lost = 60.0, True
    with pytest.raises(LeadershipLost):
        leader.turn()
    assert leader.kinds == [EventKind.LEADER]
