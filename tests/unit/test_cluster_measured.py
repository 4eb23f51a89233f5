"""What the records of runs say to a cluster's leader: their state, and what they have measured."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from edl.cluster.lifecycle import run_order, run_token
from edl.cluster.manifest import JobManifest
from edl.cluster.view import (
    AgentView,
    JobMeasurements,
    MeasuredThroughput,
    RunRecords,
    measurements,
    resume_setting,
    status_period_s,
)
from edl.policy.observation import SizeMeasurement
from edl.policy.scaling_profile import ScalingProfile
from edl.policy.step_time import StepTimeSample
from edl.records import (
    Assigned,
    Desired,
    Generation,
    Host,
    Job,
    JobState,
    ProgressSample,
    TrainingStatus,
)
from edl.spec import JobSpec
from edl.step.batching import Batching


def run(
    order: int, number: int = 1, status: TrainingStatus | None = None, **rates: float
) -> RunRecords:
    seen = tuple((int(key[1:]), SizeMeasurement(rate, 50, 10.0)) for key, rate in rates.items())
    return RunRecords(
        run_token(order, number),
        Job("j", JobSpec(("x",))),
        Assigned({"a": 2}, devices={"a": (0, 1)}),
        status=status or TrainingStatus(),
        learned=ScalingProfile(by_batch=seen),
    )


@pytest.mark.parametrize("junk", [float("nan"), float("inf"), -1.0, 1e300, 1e-300])
def test_numbers_that_cannot_be_are_left_out(junk: float) -> None:
    """A policy that fails on one job's numbers gives no job of the cluster other slots."""
    status = TrainingStatus(left=junk, noise_scale=-1.0, step=-5, global_batch=10**400)
    seen = [(2, SizeMeasurement(junk, 50, 10.0)), (2, SizeMeasurement(10.0, 50, junk))]
    seen += [(n, SizeMeasurement(10.0, 50, 10.0)) for n in (0, -1, 10**400)]
    seen += [(2, SizeMeasurement(10.0, 50, 10.0, hosts)) for hosts in (0, -1, 10**400)]
    one = replace(run(5, status=status), learned=ScalingProfile(by_batch=tuple(seen)))
    found, known = measurements(MeasuredThroughput(5), one, 5)
    assert not found.steps
    assert known == JobMeasurements(left=junk if junk == 1e-300 else None)
    assert not measurements(MeasuredThroughput(6), one, 6)[0].curve


def test_the_order_of_a_run() -> None:
    assert run_order(run_token(77, 3)) == 77
    assert run_order("0123456789abcdef" * 2) == -1


def test_a_run_as_a_plan_reads_it() -> None:
    agent = Host("a", 2, "here", leaving=True, disabled={"1": "why"}, devices=(0, 1), busy=(1,))
    job = Job("j", JobSpec(("x",)), JobState.STOPPING, "halt", exit_code=3)
    assigned = Assigned({"a": 1}, devices={"a": (0, 1)})
    one = RunRecords("t", job, assigned, 7, Desired(batch=64), agents=(agent,))
    view = one.view
    assert (view.token, view.state, view.reason, view.exit_code) == ("t", "stopping", "halt", 3)
    assert (view.devices, view.version, view.workers) == ({"a": (0, 1)}, 7, {"a": 1})
    assert view.batch == 64
    assert replace(one, desired=Desired()).view.batch is None
    assert view.agents == {"a": AgentView(frozenset({0, 1}), frozenset({1}), True, 1, why="why")}


def test_the_reason_of_a_run_is_one_line_without_terminal_sequences() -> None:
    """The code of the job may have written it, and administrators of the cluster read it."""
    reason = "\x1b]0;owned\x07\n11-28 22:00:00  state      bob.y: forged /caf\udce9 – 东"
    view = RunRecords("t", Job("j", JobSpec(("x",)), reason=reason), Assigned()).view
    assert (
        view.reason
        == "\ufffd]0;owned\ufffd 11-28 22:00:00  state      bob.y: forged /caf\ufffd – 东"
    )


def test_a_run_trains_when_its_ring_has_trained_a_step() -> None:
    ring = Generation(1, 1, (), 0, (), (), "first")
    resumed = TrainingStatus(step=700)
    sample = TrainingStatus(step=1, progress_sample=ProgressSample(0, 1, 1, 0, 1, 8, 1.0))
    timed = TrainingStatus(step=701, median_step_s=0.1)
    found = [
        RunRecords(
            "t", Job("j", JobSpec(("x",))), Assigned(), generation=generation, status=status
        ).view.trains
        for generation in (None, ring)
        for status in (resumed, sample, timed)
    ]
    assert found == [False, False, False, False, True, True]


def test_measurements_of_former_runs_are_kept() -> None:
    first = run(5, 1, TrainingStatus(step=30, left=900.0, global_batch=20), w1=50.0, w2=100.0)
    kept, known = measurements(MeasuredThroughput(), first, 5)
    assert known.steps == (StepTimeSample(1, 1, 10.0, 0.2), StepTimeSample(2, 1, 10.0, 0.2))
    assert (known.done_steps, known.left, known.global_batch) == (30, 900.0, 20)
    kept, known = measurements(kept, run(5, 2, w2=200.0), 5)
    assert known.steps == (StepTimeSample(1, 1, 10.0, 0.2), StepTimeSample(2, 1, 10.0, 0.1))
    assert known.left is None, "the new run has not said it"
    assert measurements(kept, None, 5)[1].steps == known.steps
    assert MeasuredThroughput.from_json(json.loads(json.dumps(kept.to_json()))) == kept


def test_a_job_that_had_the_name_before_says_how_fast_the_new_one_may_be() -> None:
    old = run(5, 4, TrainingStatus(step=30, left=900.0), w1=50.0, w2=90.0)
    kept, known = measurements(MeasuredThroughput(), old, 8)
    assert (known.steps, known.left, known.done_steps) == ((), None, 0)
    assert known.curve == {1: 50.0, 2: 90.0}
    kept, known = measurements(kept, run(8, 1, w2=100.0), 8)
    assert known.curve == {1: 50.0, 2: 90.0}
    assert known.steps == (StepTimeSample(2, 1, 10.0, 0.2),)
    _, known = measurements(kept, None, 9)
    assert (known.steps, known.curve) == ((), {1: 50.0, 2: 100.0})


@pytest.mark.parametrize(
    ("named", "order", "saved", "resume"),
    [
        ("", 3, "", ""),  # a script without checkpoints begins anew, and is not refused
        ("", 3, "/ck/step-8", "auto"),
        ("", 4, "/ck/step-8", ""),  # another submission of the same name
        ("/ck", 3, "", "auto"),
    ],
)
def test_a_run_continues_where_there_may_be_a_checkpoint(
    named: str, order: int, saved: str, resume: str
) -> None:
    manifest = JobManifest("digits", ("python", "train.py"), 1, 4, checkpoint=named)
    before = run(3)
    last = replace(before, job=replace(before.job, checkpoint=saved))
    assert resume_setting(manifest, order, last) == resume
    assert resume_setting(manifest, order, None) == ("auto" if named else "")


def test_a_run_that_was_to_continue_and_died_before_that_lets_the_next_one_continue() -> None:
    """It has saved nothing itself, but the checkpoint of the run before it is still the newest."""
    manifest = JobManifest("digits", ("python", "train.py"), 1, 4)
    first = run(3, 1)
    first = replace(first, job=replace(first.job, checkpoint="/ck/step-8"))
    second = run(3, 2)
    spec = manifest.job_spec(resume_setting(manifest, 3, first))
    second = replace(second, job=replace(second.job, spec=spec))
    assert resume_setting(manifest, 3, second) == "auto"
    assert resume_setting(manifest, 4, second) == ""


def test_a_thousand_runs_write_as_many_statuses_a_second_as_fifty() -> None:
    assert status_period_s(0.5, runs=50) == 0.5
    assert status_period_s(0.5, runs=1000) == 10.0
    assert status_period_s(30.0, runs=1000) == 30.0


def test_the_batches_of_a_step_grow_with_the_workers_as_the_script_sets_them() -> None:
    def known(batching: Batching | None, step_batches: int = 1) -> Batching | None:
        learned = ScalingProfile(batching=batching, step_batches=step_batches)
        return measurements(MeasuredThroughput(5), replace(run(5), learned=learned), 5)[1].batching

    assert known(None) is None
    assert known(Batching(32)) == Batching(32)
    accumulated = known(Batching(32, max_global_batch=100), step_batches=4)
    assert accumulated is not None
    assert [accumulated.of_all(size) for size in (1, 2, 8)] == [128, 256, 400]
    chosen = known(Batching(batch_range=(64, 256), chosen=128), step_batches=2)
    assert chosen is not None
    assert chosen.of_all(8) == 256
    for junk in (Batching(0), Batching(-1), Batching(global_batch=10**400)):
        assert known(junk) is None
    assert known(Batching(32), step_batches=0) is None
