"""How a request to the HTTP API waits for the end of a job; without FastAPI."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from edl.api.routes import wait_for_end
from edl.cluster.lifecycle import LifeState
from edl.cluster.records import Goal
from edl.cluster.status import ClusterJobStatus
from edl.errors import CoordinationError, UnknownJob, UsageError

RUNS = ClusterJobStatus(
    name="digits",
    state=LifeState.RUNNING,
    reason="trains",
    wanted=Goal.RUN,
    result=None,
    exit_code=0,
    slots=1,
    surplus=0,
    min=1,
    max=1,
    np=1,
    priority=0,
    queue="default",
    submitted_s=1.0,
    since_s=1.0,
    started_s=1.0,
    ended_s=0.0,
    runs=1,
    failures=0,
)
ENDED = replace(RUNS, state=LifeState.ENDED)
AWAY = CoordinationError("ZooKeeper did not answer")


def wait(
    looks: Sequence[ClusterJobStatus | Exception], timeout_s: float = 60.0, cut_after: int = 99
) -> ClusterJobStatus:
    left = list(looks)

    async def look() -> ClusterJobStatus:
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    async def is_cut_short() -> bool:
        return len(looks) - len(left) >= cut_after

    return asyncio.run(wait_for_end(look, timeout_s, is_cut_short, (CoordinationError,), 0.0))


def test_a_job_that_ends() -> None:
    assert wait([RUNS, RUNS, ENDED]) == ENDED


def test_a_cluster_that_hesitates_is_asked_again() -> None:
    assert wait([AWAY, RUNS, AWAY, AWAY, ENDED]) == ENDED


def test_the_time_ends() -> None:
    assert wait([RUNS], timeout_s=0.0) == RUNS
    with pytest.raises(CoordinationError, match="did not answer"):
        wait([AWAY], timeout_s=0.0)


def test_a_wait_is_cut_short() -> None:
    assert wait([RUNS, RUNS], cut_after=2) == RUNS
    with pytest.raises(CoordinationError):
        wait([RUNS, AWAY], cut_after=2)


def test_another_job_of_the_name() -> None:
    with pytest.raises(UnknownJob):
        wait([RUNS, AWAY, replace(ENDED, submitted_s=2.0)])


def test_another_error_ends_the_wait() -> None:
    with pytest.raises(UsageError):
        wait([RUNS, UsageError("no")])
