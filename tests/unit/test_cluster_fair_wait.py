"""When a job is due, how long its turn is, and who comes first: worked out by hand."""

from __future__ import annotations

import pytest

from edl.cluster.policies.edl import (
    JobDeadline,
    JobWait,
    fair_wait_s,
    first_in_turn,
    next_wait,
    read_waits,
)


@pytest.mark.parametrize(
    ("least", "slots", "expected_s"), [(1, 64, 10.0), (64, 64, 1000.0), (2, 3, 505.0), (1, 1, 10.0)]
)
def test_the_fair_wait_grows_with_the_part_of_the_cluster(least, slots, expected_s) -> None:
    assert fair_wait_s(100.0, least, slots, 0.1, 10.0) == pytest.approx(expected_s)


def after(known: JobWait, span_s: float, runs: bool, rest_s: float = 5000.0) -> JobWait:
    return next_wait(known, span_s, runs, 1000.0, 60.0, 600.0, rest_s)


@pytest.mark.parametrize(
    ("known", "span_s", "runs", "expected"),
    [
        # Before the first turn the time counts with slots and without.
        (JobWait(60.0), 20.0, False, JobWait(40.0)),
        (JobWait(60.0), 20.0, True, JobWait(40.0)),
        (JobWait(60.0), 70.0, True, JobWait(600.0, 990.0)),
        # A turn passes while the job has slots.
        (JobWait(600.0, 990.0), 100.0, True, JobWait(500.0, 990.0)),
        (JobWait(500.0, 990.0), 100.0, False, JobWait(500.0, 990.0)),
        (JobWait(500.0, 990.0), 500.0, True, JobWait(60.0, None, True)),
        # After it, only the time without slots counts.
        (JobWait(60.0, None, True), 90.0, True, JobWait(60.0, None, True)),
        (JobWait(60.0, None, True), 60.0, False, JobWait(600.0, 1000.0, True)),
    ],
)
def test_an_account(known: JobWait, span_s: float, runs: bool, expected: JobWait) -> None:
    assert after(known, span_s, runs) == expected


def test_a_job_that_ends_soon_has_slots_to_its_end() -> None:
    turn = JobWait(500.0, 990.0)
    assert after(turn, 500.0, True, rest_s=601.0) == JobWait(60.0, None, True)
    over = after(turn, 500.0, True, rest_s=600.0)
    assert over == JobWait(0.0, 990.0)
    assert after(over, 500.0, True, rest_s=100.0) == over


def test_the_earliest_deadline_is_first_until_one_does_not_fit() -> None:
    due = [JobDeadline("c", 1, 30.0), JobDeadline("a", 2, 10.0), JobDeadline("b", 2, 20.0)]
    assert first_in_turn(due, 5) == ({"a", "b", "c"}, "")
    assert first_in_turn(due, 3) == ({"a"}, "b")
    assert first_in_turn([], 0) == (set(), "")


def test_accounts_are_read_from_json() -> None:
    kept = {"a": [60.0, None, False], "b": [600.0, 990.0, True]}
    assert read_waits(kept) == {"a": JobWait(60.0), "b": JobWait(600.0, 990.0, True)}
