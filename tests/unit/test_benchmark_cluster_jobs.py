"""The live cluster's benchmark: what it makes of what it has measured, worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.cluster_jobs import report, simulated
from benchmarks.cluster_jobs.costs import KINDS, SHORT_JOBS, Costs, costs_of, short_profiles
from benchmarks.cluster_jobs.counts import problem_of
from benchmarks.cluster_jobs.gantt import Bar, draw, live_bars
from benchmarks.cluster_jobs.live import LiveJob, LiveRun, PolicyChoice, rings_of
from benchmarks.cluster_jobs.marks import StepMark, merged
from benchmarks.cluster_jobs.workload import BATCH, JOBS, MOST
from edl.cluster.client.client import job_manifest

COSTS = Costs(5.0, 2.0, 0.5, 0.25, 1.0, dict.fromkeys(KINDS, 1))
PROFILES = {job.name: dict(enumerate(job.waits, 1)) for job in JOBS}
# Two steps of 1 s with one worker; then 4 s without a step; then steps of 0.5 s with two.
MARKS = [
    StepMark(at_s, step, workers)
    for at_s, step, workers in (
        (10.0, 0, 1), (11.0, 1, 1), (15.0, 2, 2), (15.5, 3, 2), (16.0, 4, 2), (16.5, 5, 2),
    )
]  # fmt: skip


def live_run(policy: str = "fifo", ended_s: float = 100.0) -> LiveRun:
    """All jobs of the workload, each with one slot from its arrival on, for so many seconds."""
    jobs = []
    for one in JOBS:
        slots = ((0.0, 0), (one.arrival_s + 1, 1))
        jobs.append(LiveJob(one.name, one.arrival_s, one.arrival_s + ended_s, 1, slots, slots, ()))
    return LiveRun(PolicyChoice(policy), tuple(jobs), ((50.0, "an agent"),), {}, 0.0)


def test_manifests_are_sound_and_all_jobs_differ() -> None:
    for job in (*JOBS, *SHORT_JOBS):
        manifest = job_manifest(job.manifest(Path("/somewhere"), dict(enumerate(job.waits, 1))))
        assert manifest.batch is not None
        assert (manifest.batch.min, manifest.max, manifest.hints.steps) == (24, MOST, job.steps)
        assert manifest.hints.samples_per_s[1] == pytest.approx(BATCH / job.step_s)
        assert job.samples * 2 == job.steps * BATCH, "two epochs of whole steps"
    gains = [job.scaling.speed for job in JOBS]
    assert len({speed[1] for speed in gains}) == len(JOBS)
    assert [job.arrival_s for job in JOBS] == sorted(job.arrival_s for job in JOBS)


def test_steps_of_several_workers_are_merged() -> None:
    first, second = "1.0 0 1\n2.0 1 1\n3.0 2", "2.6 1 2\n3.5 2 2\n"
    assert merged([second, first]) == [(1.0, 0, 1), (2.0, 1, 1), (3.5, 2, 2)]
    assert rings_of(MARKS, 10.0) == ((0.0, 1), (5.0, 2), (6.5, 0))
    assert rings_of([], 10.0) == ()


def test_costs_are_means_over_all_changes() -> None:
    # Decided at 11, the second worker is there at 15: a stop of 3 s after a step of 1 s.
    slots = ((0.0, 0), (8.0, 1), (11.0, 2))
    job = LiveJob("c1", 0.0, 18.5, 1, slots, (), ())
    step_s = {"c1": {1: 1.0, 2: 0.5}}
    run = LiveRun(PolicyChoice("max_min"), (job,), (), {"c1": MARKS}, 0.0)
    found = costs_of(run, step_s)
    assert (found.prepare, found.join, found.end) == pytest.approx((1.0, 3.0, 2.0))
    assert found.counts == {"start": 0, "prepare": 1, "join": 1, "leave": 0, "end": 1}
    assert found.resize_s == 2.0
    # Started at 13 with two workers, it has trained two steps at 16, which take 1 s: 2 s are lost.
    started = replace(run, jobs=(replace(job, targets=((0.0, 0), (13.0, 2))),))
    assert costs_of(started, step_s).start == pytest.approx(2.0)
    fewer = [mark._replace(workers=3 - mark.workers) for mark in MARKS]
    left = replace(run, jobs=(replace(job, targets=((0.0, 0), (8.0, 2), (11.0, 1))),))
    assert costs_of(replace(left, marks={"c1": fewer}), step_s).leave == pytest.approx(3.5)
    assert short_profiles(PROFILES)["c1"] == PROFILES["j1-torch"]


def test_counts_are_judged() -> None:
    job = JOBS[0]
    good = {"pid": 7, "counts": {"2": job.samples}, "steps": job.steps, "wrong": [], "w_sha256": 1}
    assert problem_of([good, dict(good)], job) == ""
    assert problem_of([], job) == "no worker has reported"
    wrong = good | {"counts": {"2": job.samples - 1, "3": 1}}
    assert problem_of([good, wrong], job).startswith("worker 7: counts is")
    assert (
        problem_of([good, good | {"w_sha256": 2}], job) == "its workers have different parameters"
    )


def test_the_simulator_trains_the_measured_steps_and_then_the_end() -> None:
    jobs = [replace(JOBS[0], name="a", steps=100), replace(JOBS[1], name="b", arrival_s=10.0)]
    live = [LiveJob(job.name, job.arrival_s, 0.0, 1, (), (), ()) for job in jobs]
    profiles = {"a": {4: 0.2}, "b": {2: 0.3}}
    run = LiveRun(PolicyChoice("fifo"), tuple(live), (), {}, 0.0)
    profiles = {name: dict.fromkeys(range(1, 5), 1.0) | known for name, known in profiles.items()}
    found = simulated.play_again(run, jobs, profiles, COSTS)
    assert [job.jct_s for job in found.jobs] == pytest.approx([5 + 20 + 1, 5 + 260 * 0.3 + 1])
    model = simulated.MeasuredWork(100, profiles["a"], 1.0).model(0, 40.0)
    assert model.step_s((4,), BATCH) == pytest.approx(0.2)
    assert model.steps_left(BATCH) == pytest.approx(60)


def test_bars_last_from_the_submission_to_the_end() -> None:
    slots = ((0.0, 0), (12.0, 2), (20.0, 4), (31.0, 0))
    job = LiveJob("a", 10.0, 30.0, 1, (), slots, ())
    assert live_bars(job) == [Bar(10.0, 12.0, 0), Bar(12.0, 20.0, 2), Bar(20.0, 30.0, 4)]


def test_the_page_says_what_differs(tmp_path: Path) -> None:
    run = live_run()
    measured = report.Measured("a machine", JOBS, PROFILES, COSTS, [run])
    result = simulated.play_again(run, JOBS, PROFILES, COSTS)
    shares = report.differences(run, result)
    assert shares[0] == pytest.approx(abs(result.jobs[0].jct_s - 100) / 100)
    text = report.page(measured, [result])
    assert "| `fifo` | 100.0 s |" in text
    assert "8 of 8" in text
    draw([(run, result)], tmp_path / "cluster.svg")
    kept = json.loads(json.dumps(report.to_json(measured)))
    assert report.page(report.from_json(kept, JOBS), [result]) == text
    [said] = report.problems(measured, [result])
    assert said.startswith("fifo: completion times differ by")
    broken = replace(run, jobs=(replace(run.jobs[0], problem="it failed"), *run.jobs[1:]))
    lines = report.problems(replace(measured, runs=[broken]), [result])
    assert lines[0] == "fifo, j1-torch: it failed"
