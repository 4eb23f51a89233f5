"""What `edl list` and `edl top` say of each job, in terminals of any width."""

from __future__ import annotations

from dataclasses import replace

import pytest
from made import make_job, wanted

from edl.job.snapshot import Snapshot
from edl.records import Generation, Host, JobState, Member, RingMember, Stage, TrainingStatus
from edl.status import JobSummary, job_summary, newest_jobs, sorted_jobs, summary_lines

NOW_S = 100_000.0
RUNNING = JobSummary(
    name="digits",
    state=JobState.RUNNING,
    reason="w2 is preparing; 2 of 3 train",
    np=2,
    wanted_np=3,
    hosts=1,
    step=1234,
    epoch=2,
    fraction=0.42,
    samples_per_s=1999.6,
    remaining_s=750.0,
    created_s=NOW_S - 3 * 3600,
    ended_s=0.0,
)
FAILED = replace(
    RUNNING,
    name="a-job-with-a-name-that-is-rather-long",
    state=JobState.FAILED,
    reason="w0 ended with exit code 1 three times in a row: ValueError: not a number",
    np=0,
    fraction=None,
    remaining_s=None,
    samples_per_s=0.0,
    ended_s=NOW_S - 3600,
)


def snapshot(state: JobState = JobState.RUNNING) -> Snapshot:
    return Snapshot(
        job=make_job(state=state, created=5.0),
        hosts=(Host("a", 4, "127.0.0.1"),),
        members=tuple(
            Member(n, "a", n, "127.0.0.1", 1, 100 + n, f"t-{n}", Stage.ACTIVE) for n in (0, 1)
        ),
        **wanted({"a": 3}),
        generation=Generation(
            5, 3, tuple(RingMember(n, "a", n, "127.0.0.1", 1) for n in (0, 1)), 1, (), (), ""
        ),
        status=TrainingStatus(
            step=7, epoch=1, epoch_done=50, epoch_total=100, left=150.0, samples_per_s=10.0
        ),
    )


def test_the_summary_of_a_job() -> None:
    summary = job_summary(snapshot())
    assert (summary.np, summary.wanted_np, summary.hosts, summary.step) == (2, 3, 1, 7)
    assert (summary.fraction, summary.remaining_s, summary.created_s) == (0.5, 15.0, 5.0)
    assert JobSummary.from_json(summary.to_json()) == summary


def test_a_job_that_is_over_has_no_rest_and_no_speed() -> None:
    summary = job_summary(snapshot(JobState.STOPPED))
    assert (summary.np, summary.samples_per_s, summary.remaining_s) == (0, 0.0, None)
    assert summary.fraction == 0.5
    assert job_summary(snapshot(JobState.FINISHED)).fraction == 1.0, "the report is older"


def test_a_job_whose_workers_have_all_died_has_no_speed_and_nobody_knows_the_rest() -> None:
    dead = job_summary(replace(snapshot(), members=()))
    assert (dead.np, dead.samples_per_s, dead.remaining_s) == (0, 0.0, None)
    assert (dead.state, dead.fraction) == (JobState.RUNNING, 0.5)


def test_those_that_run_come_first_then_the_newest() -> None:
    older = replace(RUNNING, name="older", created_s=1.0)
    assert sorted_jobs([FAILED, older, RUNNING]) == [RUNNING, older, FAILED]
    ended = [replace(FAILED, name=f"j{n}", created_s=NOW_S - n) for n in range(12)]
    assert newest_jobs([RUNNING, *ended]) == ([RUNNING, *ended[:10]], 2)


def test_output_that_is_no_terminal_has_one_line_for_each_job() -> None:
    lines = summary_lines([RUNNING, FAILED], NOW_S, None)
    assert lines[0].split() == [
        *("JOB", "STATE", "WORKERS", "DONE", "LEFT", "SAMPLES/S", "STEP", "AGE", "REASON")
    ]
    first = ["digits", "running", "2/3", "42%", "12m", "2,000", "1,234", "3h"]
    assert lines[1].split(maxsplit=8) == [*first, RUNNING.reason]
    assert lines[2].startswith(f"{FAILED.name}  failed ")
    assert lines[2].endswith(FAILED.reason)
    assert len(lines) == 3


@pytest.mark.parametrize("width", [24, 40, 80, 109, 110, 200])
def test_a_terminal_gets_the_columns_that_fit(width: int) -> None:
    lines = summary_lines([RUNNING, FAILED], NOW_S, width)
    assert all(len(line) <= width for line in lines)
    words = " ".join(" ".join(lines).split())
    assert "2 of 3 train" in words
    assert lines[0].split()[:2] == ["JOB", "STATE"]
    assert ("DONE" in lines[0]) == (width >= 40)
    assert ("AGE" in lines[0]) == (width >= 80)


def test_reasons_may_be_left_out() -> None:
    assert len(summary_lines([RUNNING, FAILED], NOW_S, 40, reasons=False)) == 3
