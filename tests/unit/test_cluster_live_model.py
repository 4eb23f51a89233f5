"""What a cluster policy is told of a live job: its speed on other slots, and what is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from cluster_world import Batches, Hints, Request

from edl.cluster import candidates as module
from edl.cluster.candidates import (
    LEAST_SERVICE_S,
    StepTimeModels,
    batch_of,
    live_model,
    throughput_curve,
)
from edl.cluster.lifecycle import JobLifecycle, LifeState
from edl.cluster.view import JobMeasurements, JobView
from edl.policy.step_time import StepTime, StepTimeSample
from edl.policy.step_time_fit import fit_all
from edl.step.batching import Batching


def job(
    life: JobLifecycle | None = None, request: dict[str, Any] | None = None, **known: Any
) -> JobView:
    measured = JobMeasurements(**{"global_batch": 64, **known})
    return JobView(
        "a", 1, Request(**(request or {})), life=life or JobLifecycle(), measured=measured
    )


def test_a_measured_size_is_predicted_as_it_was_measured() -> None:
    steps = (
        StepTimeSample(1, 1, 64, 0.9),
        StepTimeSample(2, 1, 32, 0.6),
        StepTimeSample(4, 2, 16, 0.5),
    )
    model = live_model(job(steps=steps, batching=Batching(global_batch=64)), 0.0)
    assert model.step_s((1,), 64) == pytest.approx(0.9)
    assert model.step_s((2,), 64) == pytest.approx(0.6)
    assert model.step_s((2, 2), 64) == pytest.approx(0.5)
    assert model.step_s((3,), 64) < 0.9


def test_models_that_are_read_together_are_fitted_together_and_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So a decision about a thousand jobs fits few models, and these at the cost of a few."""
    fitted: list[int] = []

    def counted(many: Sequence[Sequence[StepTimeSample]]) -> list[StepTime]:
        fitted.append(len(many))
        return fit_all(many)

    monkeypatch.setattr(module, "fit_all", counted)
    monkeypatch.setattr(module, "_FITTED", {})

    def steps(drift: float) -> list[tuple[StepTimeSample, ...]]:
        times = [(StepTimeSample(2, 1, 32, step_s * drift)) for step_s in (0.5, 0.6, 0.7)]
        return [(one,) for one in times]

    for drift in (1.0, 1.001):
        models = StepTimeModels()
        found = [live_model(job(steps=one), 0.0, models) for one in steps(drift)]
        for model, step_s in zip(found, (0.5, 0.6, 0.7), strict=True):
            assert model.step_s((2,), 64) == pytest.approx(step_s * drift), "exact where measured"
    assert fitted == [3]


def test_no_model_is_fitted_that_no_policy_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "fit_all", None)
    live_model(job(steps=(StepTimeSample(2, 1, 32, 0.123),)), 0.0)


def test_old_models_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FITTED", {})
    monkeypatch.setattr(module, "FITTED", 4)
    for number in range(5):
        steps = (StepTimeSample(2, 1, 32, 1.0 + number),)
        assert live_model(job(steps=steps), 0.0).step_s((2,), 64) == pytest.approx(1.0 + number)
    assert len(module._FITTED) == 3


def test_a_curve_counts_where_nothing_was_measured() -> None:
    """A former run, or the user, says more than a guess; what this run measured says most."""
    steps = (StepTimeSample(2, 1, 32, 0.5),)
    request = {"hints": Hints(samples_per_s={1: 1.0, 4: 320.0})}
    model = live_model(job(steps=steps, curve={1: 80.0, 2: 1.0}, request=request), 0.0)
    assert model.step_s((1,), 64) == pytest.approx(64 / 80)
    assert model.step_s((2,), 64) == pytest.approx(0.5)
    assert model.step_s((4,), 64) == pytest.approx(64 / 320)


def test_an_unknown_job_is_taken_to_scale_so_that_more_slots_are_tried() -> None:
    model = live_model(job(), 0.0)
    assert model.step_s((1,), 64) == pytest.approx(4 * model.step_s((2, 2), 64))


def test_each_worker_trains_as_many_samples_as_before() -> None:
    """4 workers that take 0.64 s for 128 samples are faster than 2 that take 0.52 s for 64.

    With 64 samples they would take as long as with 128, as most of their time is not computing.
    """
    steps = (
        StepTimeSample(4, 2, 32, 0.64),
        StepTimeSample(4, 2, 22, 0.62),
        StepTimeSample(2, 1, 32, 0.52),
    )
    script, own_data, fixed = Batching(32), None, Batching(global_batch=64)
    for batching, rate in ((script, 128 / 0.64), (own_data, 128 / 0.64), (fixed, 64 / 0.62)):
        model = live_model(job(steps=steps, batching=batching), 0.0)
        assert 64 / model.step_s((2, 2), 64) == pytest.approx(rate, rel=0.05)
        assert model.step_s((2,), 64) == pytest.approx(0.52)
    within = live_model(job(steps=steps, batching=Batching(32, max_global_batch=64)), 0.0)
    assert 64 / within.step_s((2, 2), 64) == pytest.approx(64 / 0.62, rel=0.05)


def test_what_the_job_says_is_left_is_left() -> None:
    assert live_model(job(left=6400.0), 0.0).steps_left(64) == 100
    assert live_model(job(left=6400.0), 0.0).steps_left(128) == 50


def test_the_users_number_of_steps_counts_if_the_job_does_not_know() -> None:
    request = {"hints": Hints(steps=1000)}
    assert live_model(job(request=request, done_steps=400), 0.0).steps_left(64) == 600
    assert live_model(job(request=request, done_steps=2000), 0.0).steps_left(64) == 0


def left_s(one: JobView, now_s: float) -> float:
    model = live_model(one, now_s)
    return model.steps_left(64) * model.step_s((one.min_slots,), 64)


def test_the_users_duration_is_spent_by_attained_service() -> None:
    life = JobLifecycle(LifeState.RUNNING, slots=2, counted_s=0.0)
    one = job(life, {"max": 4, "min": 2, "hints": Hints(duration_s=300.0)})
    assert left_s(one, 0.0) == pytest.approx(4 * 300 / 2)
    assert left_s(one, 100.0) == pytest.approx((4 * 300 - 200) / 2)
    assert left_s(one, 9999.0) > 0


def test_a_job_of_unknown_length_has_as_much_left_as_it_has_attained() -> None:
    life = JobLifecycle(LifeState.RUNNING, slots=4, counted_s=0.0)
    one = job(life, {"min": 2})
    assert left_s(one, 10.0) == pytest.approx(LEAST_SERVICE_S)
    assert left_s(one, 1000.0) == pytest.approx(4 * 1000 / 2)


def test_a_larger_batch_is_worth_less_as_the_noise_scale_says() -> None:
    request = {"batch": Batches(32, 512)}
    assert live_model(job(request=request), 0.0).efficiency(512) == 1.0
    model = live_model(job(request=request, noise_scale=96.0), 0.0)
    assert model.efficiency(32) == 1.0
    assert model.efficiency(96 + 32 + 128) == pytest.approx(128 / 352)
    assert live_model(job(noise_scale=float("inf")), 0.0).efficiency(512) == 1.0


def test_the_batch_is_measured_or_the_smallest_or_one_sample_a_slot() -> None:
    assert batch_of(job()) == 64
    unknown = JobMeasurements()
    assert batch_of(replace(job(request={"batch": Batches(32, 512)}), measured=unknown)) == 32
    assert batch_of(replace(job(request={"max": 8, "np": 6}), measured=unknown)) == 6


def test_a_curve_says_where_each_point_comes_from() -> None:
    steps = (StepTimeSample(2, 1, 32, 0.5), StepTimeSample(2, 2, 32, 0.4))
    request = {"min": 1, "max": 16, "np": 8, "hints": Hints(samples_per_s={1: 1.0, 4: 320.0})}
    found = throughput_curve(job(steps=steps, curve={1: 80.0}, request=request), 2, 0.0)
    assert [(one.np, str(one.source)) for one in found] == [
        (1, "former job"),
        (2, "measured"),
        (4, "supplied"),
        (8, "assumed"),
        (16, "assumed"),
    ]
    rates = [one.samples_per_s for one in found]
    assert rates[:3] == pytest.approx([80.0, 160.0, 320.0])
    assert found[1].hosts == 2, "the newest"
    assert rates[3] is not None
    assert rates[3] > 320.0


def test_of_an_unknown_job_only_the_ratio_is_assumed() -> None:
    found = throughput_curve(job(request={"max": 4}), 0, 0.0)
    assert [(one.np, one.samples_per_s) for one in found] == [(1, None), (4, None)]
