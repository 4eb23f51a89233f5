"""The synthetic traces are what they say, and edl's policy is not behind SRTF on a small one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from clusters import run, submitted

from benchmarks.published import synthetic
from benchmarks.published.model_errors import ModelErrors
from benchmarks.published.registry import POLICIES
from benchmarks.published.runs import PublishedRun
from benchmarks.published.synthetic import RESIZE, SPEEDS, rigid_jobs, two_kinds
from edl.simulator.engine import Rules
from edl.simulator.runs import do

RULES = Rules(60.0, RESIZE)


def test_one_wide_job_is_in_front_of_small_ones() -> None:
    wide, *small = synthetic.wide_job_first()
    assert (wide.min_slots, wide.work.whole_s(64), len(small)) == (64, 21600.0, 1423)
    assert {(job.min_slots, job.max_slots, job.work.whole_s(1)) for job in small} == {(1, 1, 300.0)}
    assert small[-1].arrival_s == pytest.approx(1423 * 30, rel=0.01)


def test_rigid_jobs_need_the_load() -> None:
    jobs = rigid_jobs(0)
    assert jobs == rigid_jobs(0) != rigid_jobs(1)
    assert all(job.min_slots == job.max_slots == job.requested_slots for job in jobs)
    work = sum(job.requested_slots * job.work.whole_s(job.requested_slots) for job in jobs)
    assert work / (64 * jobs[-1].arrival_s) == pytest.approx(0.9, rel=0.02)


def test_bursts_come_while_long_jobs_run() -> None:
    jobs = synthetic.bursts(0)
    short = [job for job in jobs if job.name.startswith("short")]
    assert (len(jobs), len(short)) == (384, 360)
    assert [job.arrival_s // 3600 for job in short[::120]] == [1, 3, 5]


@pytest.mark.parametrize("order", ["fast", "slow", "mixed"])
def test_half_of_the_nodes_are_fast(order: str) -> None:
    kinds = [node.kind for node in two_kinds(order)]
    assert [kinds.count(kind) for kind in SPEEDS] == [8, 8]
    assert kinds[0] == ("slow" if order == "slow" else "fast")


def test_a_wide_job_does_not_hold_up_small_ones() -> None:
    # The first trace in small: 8 slots, a job of all for 1 h, and small ones.
    wide = submitted("wide", 0.0, 3600.0, 8)
    small = [submitted(f"small-{at}", 60.0 * at, 120.0) for at in range(60)]
    machines = [replace(node, slots=4) for node in two_kinds("fast")[:2]]
    ends = {
        name: run(POLICIES[name][0], [wide, *small], machines, 30.0, interval_s=60.0)
        for name in ("edl", "srtf")
    }
    means = {name: sum(job.jct_s for job in of.values()) / 61 for name, of in ends.items()}
    assert means["edl"] <= means["srtf"]
    assert max(ends["edl"][job.name].jct_s for job in small) <= 300.0


def test_a_run_has_nodes_of_kinds_errors_and_parameters_of_its_own() -> None:
    rules = replace(RULES, speeds=SPEEDS)
    limits = {"min_slots": 1, "max_slots": 16, "parallel_fraction": 0.95}
    jobs = tuple(submitted(f"j{at}", 0.0, 600.0, 4, **limits) for at in range(3))
    means = [
        do(
            PublishedRun("edl", rules, 16, 4, jobs=jobs, machines=tuple(two_kinds(order)))
        ).result.mean_jct_s
        for order in ("fast", "slow", "mixed")
    ]
    assert means == [means[0]] * 3
    one = PublishedRun("edl", RULES, 2, 4, jobs=jobs)
    exact = do(one).result
    assert do(replace(one, wrong=ModelErrors())).result == exact
    assert do(replace(one, wrong=ModelErrors(step_times=0.5))).result != exact
    assert do(replace(one, parameters=(("patience", 9.0),))).result.jobs
