"""A job whose run cannot be removed does not keep the leader of a cluster from removing others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from edl.cluster.controller.controller import REMOVALS_S, REMOVER_REST_S, JobRemover
from edl.errors import CoordinationError, NotRemovable

STUCK = NotRemovable("stuck", "/edl/jobs/stuck", "is nested too deeply")


class Cluster:
    """Ended jobs, of which the run of each answers its removal in its own way.

    Attributes:
        jobs: the names of the jobs, the one that ended first is the first.
        answers: job -> True if its run is removed, False if a part of it, or the error.
        now_s: the time; each removal takes ``REMOVALS_S``.
        tried: the jobs whose removal was tried.
        said: what the user was told.
    """

    def __init__(self, **answers: bool | Exception) -> None:
        self.jobs = list(answers)
        self.answers = answers
        self.now_s = 0.0
        self.tried: list[str] = []
        self.said: list[str] = []
        runs: Any = SimpleNamespace(remove=self._remove_run)
        self._remover = JobRemover(runs, self._remove_record, self.said.append, lambda: self.now_s)

    def _remove_run(self, job: str, secret: str) -> bool:
        self.tried.append(job)
        self.now_s += REMOVALS_S
        answer = self.answers[job]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _remove_record(self, job: Any) -> None:
        self.jobs.remove(job.name)

    def turn(self, unread: tuple[str, ...] = ()) -> None:
        jobs: Any = [SimpleNamespace(name=name) for name in self.jobs]
        secrets = {name: "secret" for name in self.jobs if name != "new"}
        self._remover.remove(jobs, secrets, unread)


@pytest.mark.parametrize("answer", [STUCK, CoordinationError("away"), ValueError("junk"), False])
def test_a_job_that_stays_is_tried_after_all_others(answer: bool | Exception) -> None:
    cluster = Cluster(stuck=answer, two=True, three=True)
    for _ in range(3):
        cluster.turn()
    assert cluster.jobs == ["stuck"]
    assert cluster.tried == ["stuck", "two", "three"]


def test_jobs_that_are_removed_part_by_part_take_turns() -> None:
    cluster = Cluster(one=False, two=False, three=False)
    for _ in range(6):
        cluster.turn()
    assert cluster.tried == ["one", "two", "three"] * 2


def test_what_an_administrator_has_to_do_is_said_once_and_is_seldom_tried() -> None:
    cluster = Cluster(stuck=STUCK)
    for _ in range(3):
        cluster.turn()
    assert cluster.tried == ["stuck"]
    cluster.now_s += REMOVER_REST_S
    cluster.turn()
    assert cluster.tried == ["stuck"] * 2
    assert cluster.said == [str(STUCK)]
    cluster.answers["stuck"] = True
    cluster.now_s += REMOVER_REST_S
    cluster.turn()
    assert cluster.jobs == []


def test_a_job_that_is_stuck_once_more_is_said_once_more() -> None:
    cluster = Cluster(stuck=STUCK)
    cluster.turn()
    for answer in (False, STUCK):
        cluster.answers["stuck"] = answer
        cluster.now_s += REMOVER_REST_S
        cluster.turn()
    assert cluster.said == [str(STUCK)] * 2


def test_a_job_that_never_ran_has_no_run_to_remove() -> None:
    cluster = Cluster(new=False)
    cluster.turn()
    assert (cluster.jobs, cluster.tried) == ([], [])


def test_a_job_that_cannot_be_read_now_stays() -> None:
    cluster = Cluster(one=True, two=True)
    cluster.turn(unread=("one",))
    assert cluster.jobs == ["one"]
