"""Arrivals drawn by seed, and JSA's jobs that come with them."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest

from benchmarks.published.jsa_workload import KINDS, SHAPES, job_of_kind, jsa_jobs, shape, times
from edl.errors import UsageError


class Dealt(random.Random):
    def __init__(self, *draws: float) -> None:
        super().__init__()
        self.draws = list(draws)

    def expovariate(self, lambd: float = 1.0) -> float:
        assert lambd == 1.0
        return self.draws.pop(0)


def test_arrivals_follow_a_rate_that_changes() -> None:
    # One in 2 s for 10 s, then none for 10 s, over and over. 1 is owed until 2 s, 3 until 8 s; of
    # the 2 that are owed then, 1 passes until 10 s, and the other from 20 to 22 s.
    dealt = Dealt(1.0, 3.0, 2.0, 9.0)
    assert list(times([(10, 0.5), (10, 0.0)], 25, dealt)) == pytest.approx([2, 8, 22])


@pytest.mark.parametrize(
    ("text", "expected"),
    # Hours times jobs an hour: 12 and 60; four hours of each; 30 in each burst, 5 until the next.
    [("low", 96), ("high", 480), ("mixed", 288), ("bursts", 280), ("0.5", 240)],
)
def test_so_many_come_in_eight_hours(text: str, expected: int) -> None:
    counts = [len(jsa_jobs(text, seed)) for seed in range(10)]
    # The standard deviation of a mean of 10 such counts.
    assert sum(counts) / 10 == pytest.approx(expected, abs=4 * (expected / 10) ** 0.5)
    assert len(set(counts)) > 1


def test_mixed_arrivals_alternate_each_hour() -> None:
    hours = Counter(
        int(job.arrival_s // 3600) for seed in range(10) for job in jsa_jobs("mixed", seed)
    )
    assert all(hours[number] < 200 < hours[number + 1] for number in range(0, 8, 2))


def test_the_same_seed_draws_the_same_jobs() -> None:
    jobs = jsa_jobs("low", 3)
    assert jobs == jsa_jobs("low", 3) != jsa_jobs("low", 4)
    assert all(one.arrival_s < other.arrival_s for one, other in pairwise(jobs))
    assert {job.kind for job in jobs} == {kind.name for kind in KINDS}


def test_unknown_arrivals() -> None:
    for text in ("often", "0", "-1", "nan"):
        with pytest.raises(UsageError, match="use low, high, mixed, bursts, or a number"):
            shape(text)
    assert shape("low") is SHAPES["low"]
    with pytest.raises(UsageError, match="no job arrives in 8 hours at"):
        jsa_jobs("0.0001", 0)


def test_a_step_of_a_balanced_job() -> None:
    kind = KINDS[2]
    # 0.03 s, and 0.002 s for each of 64 samples: 0.158 s.
    assert kind.step_s(1, 64) == pytest.approx(0.158)
    assert kind.step_s(1, 128) == pytest.approx(2 * 0.158)  # in two parts: 64 samples fit
    # On 2 slots all 28 million weights, 4 bytes each, pass once at 1.2 GB a second: 0.0933 s, and
    # a hop of 0.002 s. 127 samples take as long as 128.
    assert kind.step_s(2, 128) == pytest.approx(0.158 + 0.112 / 1.2 + 0.002)
    assert kind.step_s(2, 127) == kind.step_s(2, 128)


def test_a_job_takes_its_time_on_one_full_slot() -> None:
    job = job_of_kind("a", 5.0, KINDS[2], 1580.0)
    assert job.work.end_of(0) == pytest.approx(640_000)  # 10,000 steps of 64 samples
    assert job.work.end_of(0) / job.work.rate((1,), 64, 0) == pytest.approx(1580)
    assert job.work.model(0, 320_000.0).steps_left(64) == pytest.approx(5000)
    assert (job.requested_slots, job.max_slots, job.batch, job.batches) == (1, 10, 64, (64, 512))
    durations = [one.work.end_of(0) / one.work.rate((1,), one.batch, 0) for one in jsa_jobs("1", 0)]
    assert 1800 <= min(durations) < 1900 < 3500 < max(durations) <= 3600
