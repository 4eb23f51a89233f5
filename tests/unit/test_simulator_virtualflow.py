"""VirtualFlow's 20 jobs: what the simulator makes of them, beside what was measured on 8 GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import pytest

from benchmarks.published.runs import SETS, VIRTUALFLOW, PublishedRun
from benchmarks.published.virtualflow_answers import MeasuredEnds, measured_ends
from benchmarks.published.virtualflow_workload import virtualflow_jobs
from edl.simulator.engine import Rules
from edl.simulator.results import Result
from edl.simulator.runs import do


def simulated(policy: str) -> Result:
    of = SETS[VIRTUALFLOW]
    rules = Rules(of.interval_s, of.resize)
    return do(
        PublishedRun(policy, rules, of.nodes, of.slots, jobs=tuple(virtualflow_jobs()))
    ).result


def ends(number: int) -> Sequence[float]:
    return [one[number] for one in measured_ends().values()]


def mean_jct_s(measured: Sequence[float]) -> float:
    jobs = virtualflow_jobs()
    return fmean(end_s - job.arrival_s for job, end_s in zip(jobs, measured, strict=True))


def test_the_jobs() -> None:
    jobs = virtualflow_jobs()
    assert len(jobs) == 20
    # 655.4 s with 8 slots, 77.4 s of them until it had joined with all.
    assert jobs[0].work.whole_s(8) == pytest.approx(578)
    assert (jobs[0].arrival_s, jobs[0].requested_slots, jobs[0].weight) == (1, 8, 5)
    # Amdahl's law with 0.93: 578 s * (0.07 + 0.93 / 4) / (0.07 + 0.93 / 8).
    assert jobs[0].work.whole_s(4) == pytest.approx(578 * 0.3025 / 0.18625)
    # One slot: its start is not in the logs, 80 s in the mean of the others.
    assert jobs[4].work.whole_s(1) == pytest.approx(833 - 80)
    assert measured_ends()["19"] == MeasuredEnds(7180.2, 6494.5)


def test_by_priority_jobs_end_as_they_did() -> None:
    # Theirs are later by the 10 s for which slots are kept after each end.
    done = simulated("priority")
    assert mean_jct_s(ends(0)) == pytest.approx(4005.2, abs=0.1)
    assert done.mean_jct_s == pytest.approx(4005.2, rel=0.02)
    assert done.makespan_s == pytest.approx(max(ends(0)) - 1, rel=0.01)
    for job, end_s in zip(done.jobs, ends(0), strict=True):
        assert job.end_s == pytest.approx(end_s, abs=100)
        assert job.resizes == 0


def test_by_weighted_fair_shares_all_end_as_soon_as_they_did() -> None:
    done = simulated("virtualflow")
    assert done.makespan_s == pytest.approx(max(ends(1)) - 1, rel=0.01)
    # The mean is 10.3 % less: to grow takes no time here, and 60 to 90 s there.
    assert mean_jct_s(ends(1)) == pytest.approx(1712.6, abs=0.1)
    assert done.mean_jct_s == pytest.approx(1712.6 * 0.897, rel=0.005)


def test_weighted_fair_shares_gain_as_much_as_was_measured() -> None:
    # Measured: all jobs are done in 0.544 of the time, their mean completion time is 0.428.
    weighted, priority = simulated("virtualflow"), simulated("priority")
    assert (max(ends(1)) - 1) / (max(ends(0)) - 1) == pytest.approx(0.544, abs=0.001)
    assert weighted.makespan_s / priority.makespan_s == pytest.approx(0.544, abs=0.01)
    assert mean_jct_s(ends(1)) / mean_jct_s(ends(0)) == pytest.approx(0.428, abs=0.001)
    assert weighted.mean_jct_s / priority.mean_jct_s == pytest.approx(0.428, abs=0.05)
