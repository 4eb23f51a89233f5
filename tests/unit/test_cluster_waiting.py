"""A wait for a job of a cluster, while ZooKeeper comes and goes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from edl.client.waiting import ClientLimits
from edl.cluster.client import waiting
from edl.cluster.client.waiting import JobCondition, wait_for_job
from edl.cluster.lifecycle import JobLifecycle, LifeState
from edl.cluster.manifest import JobManifest
from edl.cluster.records import JobReasons, Wanted
from edl.cluster.status import ClusterJobStatus
from edl.cluster.view import JobView
from edl.errors import CoordinationError, TimedOut, UnknownJob, ZooKeeperUnreachable

NOW = ClientLimits(poll_s=0.0)
MANIFEST = JobManifest("digits", ("x",), 1, 4)
QUEUED = JobView("digits", 7, MANIFEST, 1.0, Wanted(), JobLifecycle(reason="waits"))
RUNNING = replace(QUEUED, life=JobLifecycle(LifeState.RUNNING, "trains"))
ENDED = replace(QUEUED, life=JobLifecycle(LifeState.ENDED, "is done"))
AWAY = ZooKeeperUnreachable("z:1", 10.0)


class Jobs:
    def __init__(self, *answers: JobView | Exception) -> None:
        self._answers: Iterator[JobView | Exception] = iter(answers)
        self._last = answers[-1]

    def get(self, name: str) -> JobView:
        assert name == "digits"
        answer = next(self._answers, self._last)
        if isinstance(answer, Exception):
            raise answer
        return answer


def wait(
    *answers: JobView | Exception,
    until: JobCondition = JobCondition.ENDS,
    timeout_s: float | None = None,
) -> list[str]:
    told: list[ClusterJobStatus] = []
    store: Any = SimpleNamespace(jobs=Jobs(*answers), leader=SimpleNamespace(reasons=JobReasons))
    end = wait_for_job(store, "digits", until, timeout_s, told.append, NOW)
    return [*(f"{one.state}: {one.reason}" for one in told), str(end.state)]


def test_it_tells_each_state_once_also_after_an_outage() -> None:
    found = wait(QUEUED, QUEUED, AWAY, QUEUED, RUNNING, AWAY, ENDED)
    assert found == ["queued: waits", "running: trains", "ended: is done", "ended"]


def test_a_wait_for_training_ends_with_the_job_too() -> None:
    trains = JobCondition.TRAINS
    assert wait(QUEUED, RUNNING, until=trains)[-1] == "running"
    assert wait(QUEUED, ENDED, until=trains)[-1] == "ended"


def test_time_is_up() -> None:
    with pytest.raises(TimedOut) as caught:
        wait(RUNNING, timeout_s=0.0)
    said = "job digits has not ended after 0 s: it is running (trains); it goes on"
    assert str(caught.value) == said
    with pytest.raises(ZooKeeperUnreachable):
        wait(AWAY, timeout_s=0.0)


def test_a_silent_zookeeper_ends_a_wait_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "AWAY_S", 0.0)
    with pytest.raises(CoordinationError):
        wait(QUEUED, AWAY)


def test_another_job_of_that_name() -> None:
    with pytest.raises(UnknownJob, match="a new one of that name has taken its place"):
        wait(QUEUED, replace(ENDED, order=8))
