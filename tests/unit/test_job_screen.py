"""What `edl top JOB` shows, on screens of any size, of jobs of any size."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made import make_job, wanted

from edl.events import Event, WorkerFailedDetails
from edl.job.snapshot import Snapshot
from edl.records import (
    Generation,
    Host,
    JobState,
    Leader,
    Member,
    RingMember,
    Stage,
    TrainingStatus,
)
from edl.status import JobStatus, JobSummary, job_screen, job_status, jobs_screen, pause_s

FAILURE = Event(
    0.5, 5, 7, "w1 was killed by SIGKILL", WorkerFailedDetails("w1", "a", 1, -9, "", "")
)


def status(workers: int, hosts: int = 1, preparing: int = 0, **changes: object) -> JobStatus:
    places = [(n, f"host{n % hosts}") for n in range(workers)]
    ring = tuple(RingMember(n, host, n, "h", 1) for n, host in places[: workers - preparing])
    stage = {n: Stage.ACTIVE if n < workers - preparing else Stage.PREPARING for n, _ in places}
    snapshot = Snapshot(
        job=make_job(np=workers, max_np=workers),
        hosts=tuple(Host(f"host{n}", 8, "h") for n in range(hosts)),
        members=tuple(Member(n, host, n, "h", 1, n, f"t-{n}", stage[n]) for n, host in places),
        **wanted({f"host{n}": workers // hosts for n in range(hosts)}),
        generation=Generation(5, 3, ring, 1, (), (), ""),
        leader=Leader(3, 0),
        status=TrainingStatus(
            step=7, epoch=1, epoch_done=50, epoch_total=100, left=150.0, samples_per_s=10.0,
            reason="w2 is preparing; 2 of 3 train", slowest="w1", slowest_s=0.5, others_s=0.1,
        ),
    )  # fmt: skip
    return replace(job_status(snapshot, "zk"), **changes)


def texts(job: JobStatus, width: int = 80, height: int = 24, failures: int = 1) -> list[str]:
    events = [("12:00:01", FAILURE)] * failures
    return [line.text for line in job_screen(job, events, 65.0, width, height)]


def test_a_small_job() -> None:
    lines = texts(status(3, preparing=1))
    assert lines[0] == "digits  running  65s"
    assert lines[1] == f"{'━' * 30}{'─' * 30} 50%  15s left"
    assert lines[2:6] == [
        "epoch 1, step 7, 10 samples/s",
        "2 workers of 3, generation 5, w0 leads",
        "w1 is slow: 0.5 s a step, others 0.1 s",
        "w2 is preparing; 2 of 3 train",
    ]
    assert [line.split() for line in lines[7:11]] == [
        ["RANK", "WORKER", "STAGE", "HOST"],
        ["0", "w0", "active", "host0"],
        ["1", "w1", "active", "host0"],
        ["-", "w2", "preparing", "host0"],
    ]
    assert lines[-2:] == [
        "12:00:01 worker_failed: w1 was killed by SIGKILL",
        "`edl events --explain worker_failed`: what to do",
    ]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 24), (40, 15), (200, 60)])
@pytest.mark.parametrize(("workers", "hosts"), [(1, 1), (8, 2), (1000, 125), (1024, 1)])
def test_a_job_of_any_size_fits(workers: int, hosts: int, width: int, height: int) -> None:
    lines = texts(status(workers, hosts, preparing=workers // 4), width, height, failures=20)
    assert len(lines) <= height
    assert len(lines[1]) <= width
    assert lines[-2].startswith("12:00:01 worker_failed"), "the newest event is seen"


def test_a_large_job_is_shown_by_host_with_those_first_that_are_not_complete() -> None:
    lines = texts(status(1000, 125, preparing=1))
    rows = [line.split() for line in lines]
    titles = rows.index(["HOST", "PREPARING", "ACTIVE"])
    assert rows[titles + 1] == ["host124", "1", "7"], "w999 is there"
    assert ["125", "hosts", "1", "999"] in rows
    assert any(line.startswith("… ") and line.endswith(" more hosts") for line in lines)


def test_a_job_that_is_over_or_has_no_workers() -> None:
    over = status(0, state=JobState.FAILED, exit_code=1, reason="w0 failed", world_size=0)
    lines = texts(over, failures=0)
    assert lines[1].endswith(" 50%"), "no time is left"
    assert lines[-1] == "no workers"


@pytest.mark.parametrize(
    ("job", "style"),
    [
        (status(3), ""),
        (status(3, preparing=1), "yellow"),
        (status(3, samples_per_s=0.0), "yellow"),
        (status(0, state=JobState.FAILED, exit_code=1), "red"),
        (status(0, state=JobState.STOPPED, exit_code=0), ""),
    ],
)
def test_a_reason_is_coloured_where_a_job_does_not_train_as_wanted(
    job: JobStatus, style: str
) -> None:
    lines = job_screen(job, [], 65.0, 80, 24)
    assert [line.style for line in lines if line.text == job.reason] == [style]


def test_a_job_whose_workers_have_all_died_has_none() -> None:
    lines = texts(status(3, members=()), failures=0)
    assert "0 workers of 3, generation 5, w0 leads" in lines


def test_a_large_job_is_read_more_seldom() -> None:
    assert pause_s(3) == pause_s(200) == 1.0
    assert pause_s(1000) == 5.0


def summary(number: int, state: JobState = JobState.RUNNING) -> JobSummary:
    return JobSummary(
        f"j{number}", state, f"reason {number}", 2, 2, 1, 7, 0, 0.5, 10.0, 9.0, float(number), 0.0
    )


def all_texts(jobs: list[JobSummary], height: int, locked: int = 0) -> list[str]:
    return [line.text for line in jobs_screen(jobs, locked, 100.0, 80, height)]


def test_all_jobs_with_their_reasons_where_they_fit() -> None:
    jobs = [summary(1), summary(2)]
    titles, *rows = all_texts(jobs, height=5)
    assert titles.startswith("JOB")
    assert [row.split()[0] for row in rows] == ["j1", "reason", "j2", "reason"]
    assert [row.split()[0] for row in all_texts(jobs, height=4)] == ["JOB", "j1", "j2"]


def test_jobs_that_are_not_shown_are_counted() -> None:
    jobs = [summary(number) for number in range(20)]
    lines = all_texts(jobs, height=10, locked=2)
    assert len(lines) == 10
    assert lines[-2:] == ["… 13 more jobs", "2 jobs not shown: the secret is not known here"]
    assert [line.split()[0] for line in lines[1:-2]] == [f"j{number}" for number in range(7)]
    ended = [summary(number, JobState.STOPPED) for number in range(12)]
    assert all_texts(ended, height=40)[-1] == "2 more jobs have ended: `edl list --json`"


def test_without_jobs() -> None:
    assert all_texts([], 10) == ["no job of this user is known here; start one with `edl run`"]


def test_jobs_that_cannot_be_read_are_named_below_the_others() -> None:
    why = {f"j{number}": "not a Job" for number in range(5)}
    texts = [line.text for line in jobs_screen([], 0, 100.0, 80, 20, why)]
    assert texts == [
        "job j0 cannot be read: not a Job",
        "job j1 cannot be read: not a Job",
        "job j2 cannot be read: not a Job",
        "2 more jobs cannot be read",
    ]
