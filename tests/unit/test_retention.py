"""Which ended jobs are removed: the oldest of too many, and those that ended long ago."""

from __future__ import annotations

import dataclasses

import pytest
from made import make_job

from edl.host.host_agent import Retention, outdated
from edl.records import Job, JobState

NOW = 1_000_000.0


def job(name: str, ended_s: float, state: JobState = JobState.FINISHED) -> Job:
    return dataclasses.replace(make_job(), name=name, state=state, ended=NOW - ended_s)


JOBS = (job("new", 1.0), job("runs", 0.0, JobState.RUNNING), job("old", 90.0), job("mid", 50.0))


@pytest.mark.parametrize(
    ("known", "hourly", "due"), [(3, False, False), (4, False, True), (0, True, True)]
)
def test_when_the_jobs_are_read(known: int, hourly: bool, due: bool) -> None:
    assert Retention(3, 60.0).is_due(known, hourly) is due


@pytest.mark.parametrize(
    ("jobs", "time_s", "removed"),
    [
        (3, 100.0, ()),
        (2, 100.0, ("old",)),
        (3, 60.0, ("old",)),
        (1, 60.0, ("old", "mid")),
        (0, 100.0, ("old", "mid", "new")),
        (3, 0.5, ("old", "mid", "new")),
    ],
)
def test_what_is_outdated(jobs: int, time_s: float, removed: tuple[str, ...]) -> None:
    assert outdated(JOBS, Retention(jobs, time_s), NOW) == removed
