"""The step time model: what it says of made and of published measurements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edl.policy.step_time import TINY, StepTime, StepTimeSample
from edl.policy.step_time_fit import FitOptions, Loss, Objective, fit

TRUE = StepTime(0.02, 0.001, 0.03, 0.004, 0.08, 0.01, 2.0)


def made(*configurations: tuple[int, int, float], noise: float = 0.0) -> list[StepTimeSample]:
    chance = np.random.default_rng(1)
    return [
        StepTimeSample(
            n, hosts, batch, TRUE.step_s(n, hosts, batch) * (1 + chance.normal(0, noise))
        )
        for n, hosts, batch in configurations
    ]


def with_compute(*configurations: tuple[int, int, float]) -> list[StepTimeSample]:
    compute_s = [TRUE.compute_s + TRUE.each_sample_s * batch for *_, batch in configurations]
    return [
        replace(one, compute_s=time_s)
        for one, time_s in zip(made(*configurations), compute_s, strict=True)
    ]


def test_the_formula() -> None:
    # 64 samples: 0.02 + 0.064 = 0.084 s; 4 workers on a host: 0.03 + 2 * 0.004 = 0.038 s; together
    # sqrt(0.084^2 + 0.038^2) = 0.09220 s. On two hosts 0.08 + 0.02 = 0.1: sqrt(0.017056) = 0.13060.
    assert TRUE.step_s(1, 1, 64) == pytest.approx(0.084)
    assert TRUE.step_s(4, 1, 64) == pytest.approx(0.09220, abs=1e-5)
    assert TRUE.step_s(4, 2, 64) == pytest.approx(0.13060, abs=1e-5)
    assert TRUE.throughput(4, 2, 64) == pytest.approx(256 / 0.13060, rel=1e-4)


def test_it_is_found_again() -> None:
    everything = [(n, hosts, batch) for n in (1, 2, 3, 4, 8) for hosts in (1, 2)
                  for batch in (16.0, 64.0, 256.0) if n >= hosts]  # fmt: skip
    found = fit(made(*everything))
    for n, hosts, batch in [*everything, (16, 2, 64.0), (6, 1, 128.0)]:
        assert found.step_s(n, hosts, batch) == pytest.approx(
            TRUE.step_s(n, hosts, batch), rel=0.05
        )


def test_noise_is_averaged() -> None:
    configurations = [(n, 1, batch) for n in (1, 2, 4, 8) for batch in (16.0, 64.0)] * 30
    found = fit(made(*configurations, noise=0.1))
    for n, hosts, batch in configurations[:8]:
        assert found.step_s(n, hosts, batch) == pytest.approx(
            TRUE.step_s(n, hosts, batch), rel=0.05
        )


def test_what_nothing_was_measured_of_is_taken_to_cost_nothing() -> None:
    found = fit(made((1, 1, 64.0)))
    assert found.step_s(1, 1, 64.0) == pytest.approx(0.084, rel=1e-3)
    assert found.step_s(8, 2, 64.0) == pytest.approx(0.084, rel=1e-3)
    assert found.step_s(1, 1, 32.0) == pytest.approx(0.042, rel=1e-3)
    near = fit(made((1, 1, 64.0), (2, 1, 64.0)))
    assert near.step_s(2, 1, 64.0) == pytest.approx(TRUE.step_s(2, 1, 64.0), rel=0.01)
    assert near.step_s(8, 1, 64.0) == pytest.approx(near.step_s(2, 1, 64.0), rel=1e-3)
    assert near.step_s(2, 2, 64.0) == pytest.approx(near.step_s(1, 1, 64.0), rel=1e-3)
    with pytest.raises(ValueError, match="nothing was measured"):
        fit([])


def test_a_reduction_is_not_told_from_computing_by_the_times_of_several_workers() -> None:
    """Else one worker, which reduces nothing, would seem to be a thousand times as fast as two."""
    seen = [StepTimeSample(2, 1, 31.4, 0.125), StepTimeSample(4, 1, 31.7, 0.31)]
    seen.append(StepTimeSample(4, 2, 31.6, 0.46))  # an epoch's last step has fewer samples
    found = fit(seen)
    assert (found.compute_s, found.reduce_s, found.overlap) == (TINY, TINY, 1.0)
    assert found.step_s(1, 1, 32.0) == pytest.approx(0.127, rel=0.02)
    for one in seen:
        step_s = found.step_s(one.workers, one.hosts, one.batch)
        assert step_s == pytest.approx(one.step_s, rel=0.02)
    # Either of these tells them apart; the penalty of beta_r / alpha_r makes alpha_r larger.
    alone = [*seen, StepTimeSample(1, 1, 31.5, 0.1)]
    for more in (alone, [replace(one, compute_s=0.1) for one in seen]):
        assert 0.025 < fit(more).reduce_s < 0.07


def test_each_assumption_about_what_was_not_measured_can_be_chosen() -> None:
    # With one local batch of 64 samples, of 0.084 s, three quarters are taken to be constant.
    found = fit(made((1, 1, 64.0)), FitOptions(constant_share=0.75))
    assert found.step_s(1, 1, 32.0) == pytest.approx(0.084 * (0.75 + 0.125), rel=1e-3)
    # Between hosts the reduction costs three times what it costs on one.
    near = fit(made((1, 1, 64.0), (2, 1, 64.0)), FitOptions(far_factor=3.0))
    assert near.far_reduce_s == pytest.approx(3.0 * near.reduce_s)
    # 4 workers alone do not tell alpha_r from beta_r, nor one local batch gamma from both.
    four = made((1, 1, 64.0), (4, 1, 64.0))
    assert (fit(four).each_worker_s, fit(four).overlap) == (TINY, 1.0)
    undecided = fit(four, FitOptions(separable=False))
    assert undecided.each_worker_s > TINY
    assert undecided.overlap > 1.0


def test_the_compute_time_separates_the_overlap() -> None:
    """Steps of one local batch say nothing of gamma, unless their compute time was measured."""
    ways = [(1, 1, 64.0), (2, 1, 64.0), (4, 1, 64.0), (8, 1, 64.0)]
    options = FitOptions(Loss.RMSLE, separable=False)
    assert fit(with_compute(*ways), options).overlap == pytest.approx(TRUE.overlap, rel=0.3)


@pytest.mark.parametrize("options", [FitOptions(), FitOptions(Loss.RMSLE, separable=False)])
def test_derivatives_are_those_of_the_errors(options: FitOptions) -> None:
    seen = with_compute((1, 1, 10.0), (2, 1, 10.0), (4, 1, 40.0), (12, 3, 20.0))
    seen += made((8, 2, 40.0))  # without its compute time
    objective = Objective(seen, options)
    inner = objective.start
    objective.reweigh(inner)
    assert len(objective.errors(inner)) == 4 + 5 + 3
    derivatives = objective.derivatives(inner)
    for parameter, unit in enumerate(np.eye(len(inner))):
        higher, lower = objective.errors(inner + 1e-6 * unit), objective.errors(inner - 1e-6 * unit)
        assert derivatives[:, parameter] == pytest.approx((higher - lower) / 2e-6, abs=1e-5)


def test_the_order_of_measurements_does_not_matter() -> None:
    seen = made((1, 1, 64.0), (2, 1, 32.0), (4, 1, 16.0), (4, 2, 16.0), noise=0.1)
    assert fit(seen[::-1]) == fit(seen)


def test_a_published_curve() -> None:
    """AutoScaling's CPU cluster: 1,024 samples a step in all, so 1,024 / n of each worker."""
    rates = {1: 115, 2: 213, 4: 401, 8: 735, 16: 1393, 32: 2466, 40: 2891, 50: 3270}
    measured = [
        StepTimeSample(n, max(1, n // 2), 1024 / n, 1024 / rate) for n, rate in rates.items()
    ]
    found = fit(measured)
    for one in measured:
        step_s = found.step_s(one.workers, one.hosts, one.batch)
        assert step_s == pytest.approx(one.step_s, rel=0.08), one
