"""What an unchanged script's workers send to each other before the training."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from made import make_job

from edl.clock import SystemClock
from edl.errors import CoordinationError, JobFailed, UnknownJob, WorkerEvicted
from edl.job.daemon import exchange_before_training
from edl.job.snapshot import Snapshot
from edl.records import Generation, Member, RingMember
from edl.worker.shared_state import SharedState
from edl.zookeeper.nodes import JobNodes
from edl.zookeeper.paths import JobPaths
from edl.zookeeper.reads import encode
from edl.zookeeper.store import JobStore, ScriptMessageNode

LIMIT_S = 600.0
AWAY = CoordinationError("there is no connection to ZooKeeper")
GONE = UnknownJob("digits")


class Clock(SystemClock):
    def __init__(self) -> None:
        self.at_s = 0.0

    def now_s(self) -> float:
        return self.at_s

    def sleep(self, seconds: float) -> None:
        self.at_s += seconds


class Nodes:
    paths = JobPaths("digits")

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def compare_and_set(self, path: str, change: Callable[[Any], Any]) -> dict[str, Any]:
        assert path == self.paths.script
        self.values = change(self.values)
        return self.values

    def read(self, _: Any) -> list[Any]:
        return [(encode(self.values), None)]


class Case:
    """A job in ZooKeeper, of which each look of a worker finds what ``looks`` says, then ``now``.

    ``was_lost`` is what is known of a job that is not found, or the error of asking.
    """

    def __init__(self, now: Snapshot) -> None:
        self.now = now
        self.looks: list[Exception] = []
        self.was_lost: bool | Exception = True
        exchange = ScriptMessageNode(cast(JobNodes, Nodes()))
        self._store = SimpleNamespace(
            snapshot=self._snapshot, was_lost=self._was_lost, script_exchange=exchange
        )
        self.clock = Clock()
        self.shared = SharedState(clock=self.clock)

    def exchange(self, worker: int, limit_s: float = LIMIT_S) -> list[bytes] | None:
        self.shared.worker = worker
        store = cast(JobStore, self._store)
        return exchange_before_training(store, self.shared, limit_s, 0, b"of %d" % worker)

    def _snapshot(self) -> Snapshot:
        if self.looks:
            raise self.looks.pop(0)
        return self.now

    def _was_lost(self, error: UnknownJob) -> bool:
        assert error is GONE
        if isinstance(self.was_lost, Exception):
            raise self.was_lost
        return self.was_lost


def snapshot(ring: Iterable[int], alive: Iterable[int], *evicted: int) -> Snapshot:
    members = tuple(RingMember(worker, "alpha", worker, "127.0.0.1", 1) for worker in ring)
    return Snapshot(
        job=make_job(),
        members=tuple(Member(worker, "alpha", worker, "127.0.0.1", 1, 1, "a") for worker in alive),
        generation=Generation(1, 1, members, 0, (), (), "it starts"),
        evicted=dict.fromkeys(evicted, "it is dead"),
    )


def test_a_worker_without_a_session_is_waited_for() -> None:
    case = Case(snapshot(ring=(0, 1, 2), alive=(0, 1)))
    for worker in (0, 1):
        with pytest.raises(JobFailed, match="was not called by all workers within 5 s"):
            case.exchange(worker, limit_s=5.0)
    assert case.exchange(2) == [b"of 0", b"of 1", b"of 2"], "its node is not back yet"


def test_an_evicted_worker_is_not_waited_for() -> None:
    case = Case(snapshot((0, 1), (0, 1), 1))
    assert case.exchange(0) == [b"of 0"], "also while its session lasts"
    case.shared.evict("it is dead")
    with pytest.raises(WorkerEvicted):
        case.exchange(1)


@pytest.mark.parametrize("was_lost", [True, AWAY])
def test_zookeeper_is_waited_for(was_lost: bool | Exception) -> None:
    case = Case(snapshot((0,), (0,)))
    case.was_lost = was_lost
    case.looks = [AWAY, GONE, GONE, AWAY]
    assert case.exchange(0) == [b"of 0"]


def test_zookeeper_is_waited_for_until_the_limit() -> None:
    case = Case(snapshot((0,), (0,)))
    case.looks = [AWAY] * 10**4
    with pytest.raises(CoordinationError, match="no connection"):
        case.exchange(0)
    assert LIMIT_S < case.clock.at_s < LIMIT_S + 2.0


def test_a_job_that_was_removed_is_not_waited_for() -> None:
    case = Case(snapshot((0,), (0,)))
    case.was_lost = False
    case.looks = [GONE]
    with pytest.raises(UnknownJob):
        case.exchange(0)
    case.was_lost = True
    case.looks = [GONE] * 10**4
    case.shared.evict("its job is gone")  # the daemon has tried for long enough
    with pytest.raises(WorkerEvicted, match="its job is gone"):
        case.exchange(0)
