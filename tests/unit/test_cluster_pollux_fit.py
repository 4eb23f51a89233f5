"""Step times fitted as Pollux does it, with numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from benchmarks.published.pollux_fit import fit_parts
from benchmarks.published.pollux_measurements import measured_applications
from edl.policy.step_time import TINY, StepTime, StepTimeSample

TRUE = StepTime(
    compute_s=0.1,
    each_sample_s=0.01,
    reduce_s=0.05,
    each_worker_s=0.002,
    far_reduce_s=0.2,
    each_far_worker_s=0.01,
    overlap=2.0,
)


def measured(workers: int, hosts: int, batch: int) -> StepTimeSample:
    compute_s = TRUE.compute_s + TRUE.each_sample_s * batch
    return StepTimeSample(workers, hosts, batch, TRUE.step_s(workers, hosts, batch), compute_s)


def test_of_one_batch_a_half_is_taken_to_be_there_whatever_the_batch() -> None:
    # 10 samples take 0.2 s: 0.1 s, and 0.01 s each. Workers are not known to cost anything.
    found = fit_parts([StepTimeSample(1, 1, 10, 0.2, 0.2)])
    assert (found.compute_s, found.each_sample_s) == pytest.approx((0.1, 0.01), rel=1e-3)
    assert found.step_s(1, 1, 30) == pytest.approx(0.4, rel=1e-3)
    assert found.step_s(4, 1, 10) == pytest.approx(0.2, rel=1e-3)


def test_two_workers_say_what_reducing_costs_and_nothing_of_more() -> None:
    # 0.2 s and 0.05 s of reducing, one after the other as long as nothing speaks against it.
    found = fit_parts([StepTimeSample(1, 1, 10, 0.2, 0.2), StepTimeSample(2, 1, 10, 0.25, 0.2)])
    assert found.step_s(2, 1, 10) == pytest.approx(0.25, rel=1e-3)
    assert found.reduce_s == pytest.approx(0.05, rel=0.2)
    assert (found.each_worker_s, found.overlap) == (TINY, pytest.approx(1.0, abs=0.1))
    # Several hosts were not tried: they cost a tenth more.
    assert found.far_reduce_s == pytest.approx(1.1 * found.reduce_s)


def test_a_known_model_is_found_again() -> None:
    ways = [(1, 1, 10), (1, 1, 40), (2, 1, 20), (4, 1, 10), (4, 1, 40)]
    ways += [(6, 2, 10), (8, 2, 40), (12, 3, 20), (16, 4, 10), (32, 8, 40)]
    seen = [measured(*way) for way in ways]
    found = fit_parts(seen)
    for workers, hosts, batch in [*ways, (3, 1, 20), (24, 6, 30)]:
        wanted = TRUE.step_s(workers, hosts, batch)
        assert found.step_s(workers, hosts, batch) == pytest.approx(wanted, rel=0.02)
    assert fit_parts(seen[::-1]) == found


def objective(values: np.ndarray, seen: list[StepTimeSample]) -> float:
    alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma = values
    squares = []
    for one in seen:
        compute = alpha_c + beta_c * one.batch
        alpha, beta = (alpha_n, beta_n) if one.hosts > 1 else (alpha_r, beta_r)
        reduce = alpha + beta * max(one.workers - 2, 0) if one.workers > 1 else TINY
        step = np.log(compute**gamma + reduce**gamma) / gamma
        squares.append([(np.log(compute / one.compute_s)) ** 2, (step - np.log(one.step_s)) ** 2])
    roots = np.sqrt(np.mean(squares, axis=0)).sum()
    ratios = (beta_n / alpha_n) ** 2 + (beta_r / alpha_r) ** 2
    return float(roots + 1e-3 * (gamma - 1) ** 2 + 1e-2 * ratios)


@pytest.mark.parametrize("name", ["bert", "cifar10", "deepspeech2", "imagenet", "yolov3"])
def test_it_is_as_good_as_the_published_search_for_parameters(name: str) -> None:
    # Theirs is L-BFGS-B from these values on; of measurements on 1 to 16 slots, the batches differ.
    application = measured_applications()[name]
    least, most = application.batches
    seen = []
    for slots, times in [((1,), 2), ((2,), 4), ((4,), 1), ((4, 4), 2), ((4,) * 4, 1)]:
        batch = times * sum(slots) * application.min_local_batch
        seen.append(application.observed(slots, min(max(batch, least), most), 0)[0])
    start, bounds = [0.1, 0.01] * 3 + [1.001], [(1e-8, None)] * 6 + [(1.0, 10.0)]
    theirs = minimize(objective, start, args=(seen,), bounds=bounds).fun
    found = fit_parts(seen)
    near = [found.reduce_s, found.each_worker_s]
    far = [found.far_reduce_s, found.each_far_worker_s]
    ours = [found.compute_s, found.each_sample_s, *far, *near, found.overlap]
    assert objective(np.array(ours), seen) < 1.03 * theirs
