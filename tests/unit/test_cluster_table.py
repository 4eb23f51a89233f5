"""What is shown of the jobs of a cluster, and what a wait for one ends with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edl.cli.jobs import (
    ENDED_SHOWN,
    details_text,
    event_line,
    job_table,
    newest_ended,
    state_line,
)
from edl.cluster.candidates import ThroughputPoint, ThroughputSource
from edl.cluster.client.waiting import wait_exit_code
from edl.cluster.lifecycle import (
    ClusterEvent,
    ClusterEventKind,
    JobLifecycle,
    LifeResult,
    LifeState,
)
from edl.cluster.manifest import BatchRange, JobManifest
from edl.cluster.records import Goal, JobReasons, Wanted
from edl.cluster.status import UNSEEN, ClusterJobDetails, ClusterJobStatus, described
from edl.cluster.view import JobView
from edl.status import hidden_jobs_note

NOW_S = 1000.0
MANIFEST = JobManifest("digits", ("python", "train.py"), 1, 4, cwd="/w")


def job(
    life: JobLifecycle | None = None, wanted: Wanted | None = None, **changes: object
) -> JobView:
    manifest = replace(MANIFEST, **changes)
    return JobView(
        manifest.name,
        1,
        manifest,
        880.0,
        wanted or Wanted(),
        life or JobLifecycle(since_s=900.0),
    )


def status(life: JobLifecycle | None = None, wanted: Wanted | None = None) -> ClusterJobStatus:
    return described(job(life, wanted), JobReasons())


class TestReason:
    def test_what_the_leader_says_counts_if_it_is_of_this_state(self) -> None:
        life = JobLifecycle(LifeState.QUEUED, "was preempted", since_s=900.0)
        said = {"digits": "place 1 of 1 in the queue: no slot is free"}
        assert described(job(life), JobReasons(900.0, said)).reason == said["digits"]
        assert described(job(life), JobReasons(899.0, said)).reason == "was preempted"
        assert described(job(life), JobReasons(950.0, {})).reason == "was preempted"

    def test_what_nobody_has_seen(self) -> None:
        assert described(job(JobLifecycle()), JobReasons()).reason == UNSEEN

    def test_an_ended_job_has_its_own(self) -> None:
        life = JobLifecycle(LifeState.ENDED, "trained to the end", since_s=900.0)
        assert described(job(life), JobReasons(950.0, {"digits": "x"})).reason == life.reason


class TestTable:
    def test_one_line_a_job_without_a_terminal(self) -> None:
        running = JobLifecycle(LifeState.RUNNING, "has all its slots", since_s=900.0, slots=4)
        rows = job_table([status(), status(running)], NOW_S, None)
        assert rows == [
            "JOB     STATE    SLOTS  PRIORITY  AGE   REASON",
            f"digits  queued   0/1-4  0         120s  {UNSEEN}",
            "digits  running  4/1-4  0         120s  has all its slots",
        ]

    def test_reasons_are_broken_at_words_on_a_terminal(self) -> None:
        rows = job_table([status()], NOW_S, 70)
        assert rows[1].splitlines() == [
            "digits  queued  0/1-4  0         120s  no controller of the cluster",
            "                                       has seen it yet",
        ]

    def test_queues_are_shown_if_there_is_one_with_a_name(self) -> None:
        one = described(job(queue="night", min=4, np=4), JobReasons())
        assert job_table([one], NOW_S, None) == [
            "JOB     STATE   SLOTS  PRIORITY  QUEUE  AGE   REASON",
            f"digits  queued  0/4    0         night  120s  {UNSEEN}",
        ]

    def test_only_the_newest_of_those_that_have_ended(self) -> None:
        many = [
            replace(status(JobLifecycle(LifeState.ENDED, ended_s=float(n))), name=f"j{n}")
            for n in range(ENDED_SHOWN + 2)
        ]
        shown, more = newest_ended([*many, status()])
        assert [one.name for one in shown] == [f"j{n}" for n in range(2, ENDED_SHOWN + 2)] + [
            "digits"
        ]
        assert more == 2
        assert (
            hidden_jobs_note(more, "edl list --state ended")
            == "2 more jobs have ended: `edl list --state ended`"
        )
        assert hidden_jobs_note(1, "edl list").startswith("1 more job has ended")


def test_one_job_in_full() -> None:
    life = JobLifecycle(
        LifeState.QUEUED,
        "its run has failed",
        since_s=900.0,
        run="ab" * 12,
        runs=2,
        failures=1,
        started_s=890.0,
    )
    details = ClusterJobDetails(
        job=status(life, Wanted(Goal.HALT, 3)),
        manifest=replace(MANIFEST, batch=BatchRange(8, 64), env={"A": "1"}),
        run=life.run,
        devices={"a": (0, 1), "b": (5,)},
        leaving={"b": (5,)},
        not_before_s=1300.0,
        slot_s=4321.0,
        throughput=(
            ThroughputPoint(1, 1, 410.25, ThroughputSource.MEASURED),
            ThroughputPoint(4, 2, 1500.0, ThroughputSource.ASSUMED),
        ),
        history=(
            ClusterEvent(895.0, ClusterEventKind.STATE, "running -> queued", "digits", by="me@a"),
        ),
    )
    lines = [line.rstrip() for line in details_text(details, NOW_S, None).splitlines()]
    assert lines[:5] == [
        "job         digits",
        "state       queued, for 100s: its run has failed",
        "wanted      that it halts",
        "slots       0 of 1-4, 4 wanted (a: 2, b: 1; giving back b: 1)",
        "priority    3, queue default",
    ]
    assert "next start  not in the next 5m" in lines
    assert f"runs        2, 1 failed; the last one is {life.run}; 4,321 slot-seconds" in lines
    assert "samples/s   410.2 with 1 worker (measured), 1,500 with 4 workers (assumed)" in lines
    unknown = (ThroughputPoint(1, 1, None, ThroughputSource.ASSUMED),)
    text = details_text(replace(details, throughput=unknown), NOW_S, None)
    assert "samples/s   not known; it is assumed to grow in proportion to the workers" in text
    at = lines.index("manifest")
    assert lines[at + 1 : at + 9] == [
        "  name: digits",
        "  command: [python, train.py]",
        "  min: 1",
        "  max: 4",
        "  cwd: /w",
        "  env: {A: '1'}",
        "  batch: {min: 8, max: 64, set_by_policy: false}",
        "",
    ]
    assert lines[-1].endswith("state      running -> queued [me@a]")


def test_an_event_of_a_host() -> None:
    event = ClusterEvent(895.0, ClusterEventKind.HOST, "it offers 4 slots", host="a")
    assert event_line(event, None).endswith("  host       a: it offers 4 slots")


@pytest.mark.parametrize(
    ("life", "code"),
    [
        (JobLifecycle(LifeState.ENDED, result=LifeResult.FINISHED), 0),
        (JobLifecycle(LifeState.ENDED, result=LifeResult.FAILED, exit_code=9), 9),
        (JobLifecycle(LifeState.ENDED, result=LifeResult.FAILED), 1),
        (JobLifecycle(LifeState.ENDED, result=LifeResult.DELETED), 94),
        (JobLifecycle(LifeState.HALTED), 90),
    ],
)
def test_a_wait_has_a_code_for_each_end(life: JobLifecycle, code: int) -> None:
    found = status(life, Wanted(Goal.HALT))
    assert found.is_over
    assert wait_exit_code(found) == code


def test_what_is_not_over() -> None:
    halted = JobLifecycle(LifeState.HALTED, "a user has halted it", since_s=900.0)
    assert not status(halted, Wanted(Goal.RUN)).is_over  # it is about to be resumed
    assert not status(JobLifecycle(LifeState.HALTING), Wanted(Goal.HALT)).is_over
    assert state_line(status(halted)) == "halted: a user has halted it"
