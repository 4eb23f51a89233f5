"""What a user may want of a job of a cluster, and which jobs' records are removed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edl.cluster.lifecycle import (
    JobLifecycle,
    LifeResult,
    LifeState,
    check_change,
    deleted,
    describe_change,
)
from edl.cluster.manifest import JobManifest
from edl.cluster.records import Goal, Wanted
from edl.cluster.view import JobView
from edl.cluster.writer import jobs_to_remove
from edl.errors import UsageError

MANIFEST = JobManifest("digits", ("python", "train.py"), 1, 4)
ENDED = JobLifecycle(LifeState.ENDED, result=LifeResult.DELETED, ended_s=5.0)

LATER = 1e9  # longer than ended jobs are kept


def stored(life: JobLifecycle, wanted: Wanted) -> JobView:
    return JobView("digits", 7, MANIFEST, 1.0, wanted, life)


def test_a_job_that_is_deleted_ends_and_one_that_has_ended_is_removed() -> None:
    running = JobLifecycle(LifeState.RUNNING)
    first = deleted(Wanted(priority=3), running)
    assert first == Wanted(Goal.GONE, 3)
    assert deleted(first, running) == first
    assert jobs_to_remove([stored(ENDED, first)], 1.0) == [], "people may want to see how it ended"
    again = deleted(first, ENDED)
    assert again == Wanted(Goal.GONE, 3, removed=True)
    assert deleted(again, ENDED) == again
    assert jobs_to_remove([stored(ENDED, again)], 1.0) == [stored(ENDED, again)]
    assert describe_change(first, again) == "its records are to be removed"


def test_a_deletion_that_may_be_a_repeated_one_leaves_the_records_of_the_first() -> None:
    first = deleted(Wanted(priority=3), JobLifecycle(LifeState.RUNNING), once=True)
    assert first == Wanted(Goal.GONE, 3)
    assert deleted(first, ENDED, once=True) == first
    assert deleted(Wanted(), ENDED, once=True) == Wanted(Goal.GONE, removed=True)


@pytest.mark.parametrize("result", [LifeResult.FINISHED, LifeResult.FAILED])
def test_a_job_that_has_ended_by_itself_is_removed_by_the_first(result: LifeResult) -> None:
    life = replace(ENDED, result=result)
    once = deleted(Wanted(), life)
    assert [one.name for one in jobs_to_remove([stored(life, once)], 1.0)] == ["digits"]
    said = "gone is wanted, no longer run, and its records are to be removed"
    assert describe_change(Wanted(), once) == said


def test_a_finished_job_is_kept_for_those_that_wait_for_it() -> None:
    finished = stored(replace(ENDED, result=LifeResult.FINISHED), Wanted())
    after = replace(MANIFEST, name="later", after=("digits",))
    waits = replace(stored(JobLifecycle(), Wanted()), name="later", manifest=after)
    assert jobs_to_remove([finished, waits], LATER, keep=0) == []
    started = replace(waits, life=JobLifecycle(started_s=9.0))
    assert jobs_to_remove([finished, started], LATER, keep=0) == [finished]
    gone = replace(waits, life=ENDED)
    assert jobs_to_remove([finished, gone], LATER, keep=1) == [gone], "deleted ones push out none"
    failed = stored(replace(ENDED, result=LifeResult.FAILED), Wanted())
    assert jobs_to_remove([failed, waits], LATER, keep=0) == [failed]
    deleted_one = replace(finished, wanted=Wanted(Goal.GONE))
    assert jobs_to_remove([deleted_one, waits], 1.0) == [deleted_one], "a user wants that"


def test_it_is_too_late_to_want_anything_else() -> None:
    gone = Wanted(Goal.GONE)
    with pytest.raises(UsageError, match="job digits is being deleted; submit it again when it"):
        check_change("digits", JobLifecycle(), gone, Wanted())
    with pytest.raises(UsageError, match=r"job digits has ended \(deleted\); submit it again"):
        check_change("digits", ENDED, Wanted(), Wanted(Goal.HALT))
    check_change("digits", ENDED, gone, replace(gone, removed=True))
