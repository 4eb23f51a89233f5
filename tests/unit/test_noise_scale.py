"""The gradient noise scale: its formulas by hand, and a problem whose noise is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edl.core.step.noise_scale import Measured, NoiseScale, Squares, measured


def test_two_workers_with_a_like_number_of_samples() -> None:
    # Gradients (3, 1) and (1, 1) of 4 samples each: squares 10 and 2, their mean (2, 1): 5.
    # S = (4 * 10 + 4 * 2 - 8 * 5) / 1 = 8; |G|^2 = 5 - 8 / 8 = 4.
    # The two-batch estimator (McCandlish, appendix A.1), b = 4 with (10 + 2) / 2 = 6, B = 8 with 5:
    # S = (6 - 5) / (1/4 - 1/8) = 8; |G|^2 = (8 * 5 - 4 * 6) / (8 - 4) = 4.
    found = measured({0: 4, 1: 4}, {0: Squares(10.0, 5.0), 1: Squares(2.0, 5.0)})
    assert found == Measured(8.0, 4.0)


def test_workers_with_different_numbers_of_samples() -> None:
    # (3, 0) of 1 sample and (0, 1) of 3: their mean is (3, 3) / 4, with the square 18 / 16 = 1.125.
    # S = (1 * 9 + 3 * 1 - 4 * 1.125) / 1 = 7.5; |G|^2 = 1.125 - 7.5 / 4 = -0.75.
    found = measured({0: 1, 1: 3}, {0: Squares(9.0, 1.125), 1: Squares(1.0, 1.125)})
    assert found == Measured(7.5, -0.75)


def test_who_pads_says_nothing() -> None:
    two = {0: Squares(10.0, 5.0), 1: Squares(2.0, 5.0)}
    assert measured({0: 4, 1: 4, 2: 0}, two) == Measured(8.0, 4.0)


def test_a_single_worker_compares_two_steps() -> None:
    # (3, 1) and (1, 1) of 4 samples each, as above: mean square 6, of their mean 5.
    assert measured({3: 4}, {3: Squares(6.0, 5.0)}) == Measured(8.0, 4.0, is_biased=True)


@pytest.mark.parametrize(
    "second", [Squares(), Squares(2.0, 0.0), Squares(math.inf, 5.0), Squares(math.nan, 5.0)]
)
def test_a_step_that_one_has_not_measured_says_nothing(second: Squares) -> None:
    assert measured({0: 4, 1: 4}, {0: Squares(10.0, 5.0), 1: second}) is None
    assert measured({0: 4, 1: 4}, {0: Squares(10.0, 5.0)}) is None
    assert measured({}, {}) is None


def test_the_ratio_is_of_the_averages() -> None:
    # Of ratios it would be (8 / 4 + 8 / -2) / 2 = -1.
    now = NoiseScale().after(Measured(8.0, 4.0), 8, 8).after(Measured(8.0, -2.0), 8, 8)
    assert now.samples == pytest.approx(16.0 / 2.0)
    assert NoiseScale().samples is None
    assert NoiseScale().after(Measured(8.0, -2.0), 8, 8).samples == math.inf


def test_it_forgets_by_samples() -> None:
    # 8,000 samples after the first, whose batch had 8: that counts for 1/e.
    now = NoiseScale().after(Measured(1.0, 1.0), 8, 8).after(Measured(3.0, 1.0), 64, 8008)
    assert now.samples == pytest.approx((math.exp(-1) + 3.0) / (math.exp(-1) + 1.0))
    assert now.weight == pytest.approx(math.exp(-1) + 1.0)


def test_what_is_biased_is_dropped_when_there_are_two_workers() -> None:
    biased = NoiseScale().after(Measured(100.0, 1.0, is_biased=True), 8, 8)
    assert biased.is_biased
    now = biased.after(Measured(6.0, 2.0), 16, 24)
    assert (now.samples, now.is_biased, now.first_batch) == (3.0, False, 8)
    assert now.after(Measured(100.0, 1.0, is_biased=True), 8, 32) == now


def test_what_a_batch_is_worth() -> None:
    # Noise scale 100: an update with 400 samples is worth (100/100 + 1) / (100/400 + 1) = 1.6
    # with 100, so each of its samples 1.6 / 4 = 0.4 of one there.
    now = NoiseScale().after(Measured(100.0, 1.0), 100, 100)
    assert now.gain(400, 100) == pytest.approx(1.6)
    assert now.efficiency(400) == pytest.approx(0.4)
    assert (now.gain(100, 100), now.efficiency(100)) == (1.0, 1.0)
    alike = NoiseScale().after(Measured(0.0, 1.0), 100, 100)
    assert (alike.gain(400, 100), alike.efficiency(400)) == (1.0, 0.25)
    only_noise = NoiseScale().after(Measured(1.0, 0.0), 100, 100)
    assert (only_noise.gain(400, 100), only_noise.efficiency(400)) == (4.0, 1.0)
    assert (NoiseScale().gain(400, 100), NoiseScale().efficiency(400)) == (1.0, 1.0)


@pytest.mark.parametrize("shares", [[(8, 8)], [(4, 16)], [(8, 8), (2, 9, 21), (5,) * 6]])
def test_a_problem_whose_noise_is_known(shares: list[tuple[int, ...]]) -> None:
    """The gradient of a sample is G and independent noise: within 10 % after 200 steps.

    ``shares``: samples of the workers, by turns: through changes of their number, too.
    """
    chance = np.random.default_rng(7)
    signal, deviation, size = 0.5, 2.0, 64
    gradient = np.full(size, signal)
    true = size * deviation**2 / float(gradient @ gradient)  # 16 samples
    now, trained = NoiseScale(), 0
    for step in range(200):
        counts = shares[step * len(shares) // 200]
        own = [gradient + deviation * chance.normal(size=(n, size)).mean(axis=0) for n in counts]
        total = sum(counts)
        mean = sum(n * each for n, each in zip(counts, own, strict=True)) / total
        trained += total
        found = measured(
            dict(enumerate(counts)),
            {w: Squares(float(each @ each), float(mean @ mean)) for w, each in enumerate(own)},
        )
        assert found is not None
        now = now.after(found, total, trained)
    assert now.samples == pytest.approx(true, rel=0.1)
