"""The gradient noise scale: its formulas by hand, and a problem whose noise is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from edl.step.noise import UNKNOWN, WINDOWS, NoiseSample, NoiseScale, Squares, noise_sample
from edl.testing.counting import known_noise
from examples.digits_data import load


def test_two_workers_with_a_like_number_of_samples() -> None:
    # Gradients (3, 1) and (1, 1) of 4 samples each: squares 10 and 2, their mean (2, 1): 5.
    # S = (4 * 10 + 4 * 2 - 8 * 5) / 1 = 8; |G|^2 = 5 - 8 / 8 = 4.
    # The two-batch estimator (McCandlish, appendix A.1), b = 4 with (10 + 2) / 2 = 6, B = 8 with 5:
    # S = (6 - 5) / (1/4 - 1/8) = 8; |G|^2 = (8 * 5 - 4 * 6) / (8 - 4) = 4.
    found = noise_sample({0: 4, 1: 4}, {0: Squares(10.0, 5.0), 1: Squares(2.0, 5.0)})
    assert found == NoiseSample(8.0, 4.0)


def test_workers_with_different_numbers_of_samples() -> None:
    # (3, 0) of 1 sample and (0, 1) of 3: their mean is (3, 3) / 4, with the square 18 / 16 = 1.125.
    # S = (1 * 9 + 3 * 1 - 4 * 1.125) / 1 = 7.5; |G|^2 = 1.125 - 7.5 / 4 = -0.75.
    found = noise_sample({0: 1, 1: 3}, {0: Squares(9.0, 1.125), 1: Squares(1.0, 1.125)})
    assert found == NoiseSample(7.5, -0.75)


def test_who_pads_says_nothing() -> None:
    two = {0: Squares(10.0, 5.0), 1: Squares(2.0, 5.0)}
    assert noise_sample({0: 4, 1: 4, 2: 0}, two) == NoiseSample(8.0, 4.0)


def test_a_single_worker_compares_two_steps() -> None:
    # (3, 1) and (1, 1) of 4 samples each, as above: mean square 6, of their mean 5.
    assert noise_sample({3: 4}, {3: Squares(6.0, 5.0)}) == NoiseSample(8.0, 4.0, is_biased=True)


@pytest.mark.parametrize(
    "second", [Squares(), Squares(2.0, 0.0), Squares(math.inf, 5.0), Squares(math.nan, 5.0)]
)
def test_a_step_that_one_has_not_measured_says_nothing(second: Squares) -> None:
    assert noise_sample({0: 4, 1: 4}, {0: Squares(10.0, 5.0), 1: second}) is None
    assert noise_sample({0: 4, 1: 4}, {0: Squares(10.0, 5.0)}) is None
    assert noise_sample({}, {}) is None


def after(*found: tuple[float, float], times: int = 1, start: NoiseScale = UNKNOWN) -> NoiseScale:
    """(S, |G|^2) of each measurement, all of them ``times`` over, from batches of 8."""
    for number, one in enumerate(found * times):
        start = start.after(NoiseSample(*one), 8, number + 1)
    return start


def test_the_ratio_is_of_the_averages() -> None:
    """Of ratios it would be (8 / 6 + 8 / 2) / 2 = 2.67."""
    known = after((8.0, 6.0), (8.0, 2.0), times=500)
    assert known.samples == pytest.approx(2.0, rel=0.1)


def test_a_few_measurements_are_no_knowledge() -> None:
    """Each alone may be far off, or below 0; in the issue one was taken for "infinite"."""
    assert UNKNOWN.samples is None
    for few in range(1, 7):
        assert after((8.0, 4.0), times=few).samples is None
    assert after((8.0, 4.0), times=7).samples == pytest.approx(2.0)
    assert after((8.0, -2.0), times=100).samples is None, "nothing but noise"
    assert after((8.0, 40.0), (8.0, -36.0), times=20).samples is None, "2, give or take 38 / 6"
    assert after((0.0, 4.0), times=7).samples == 0.0


def test_a_signal_that_falls_is_followed_or_unknown() -> None:
    """By two orders of magnitude: the long averages of before are not taken for now's."""
    before = after((8.0, 4.0), times=1000)
    for steps in range(1, 200):
        scale = after((8.0, 0.04), times=steps, start=before).samples
        assert scale is None or scale == pytest.approx(200.0, rel=0.5) or steps < 4
    assert scale == pytest.approx(200.0, rel=0.01)
    noisy = after((8.0, 4.04), (8.0, -3.96), times=1, start=before)
    for _ in range(50):
        noisy = after((8.0, 4.04), (8.0, -3.96), start=noisy)
    assert noisy.samples is None, "0.04, give or take 4: the old average says 1"


def test_what_is_biased_is_dropped_when_there_are_two_workers() -> None:
    biased = UNKNOWN
    for update in range(10):
        biased = biased.after(NoiseSample(100.0, 1.0, is_biased=True), 8, update)
    assert (biased.is_biased, biased.samples) == (True, pytest.approx(100.0))
    now = biased.after(NoiseSample(6.0, 2.0), 16, 11)
    assert (now.samples, now.steps, now.is_biased, now.first_batch) == (None, 1, False, 8)
    assert now.after(NoiseSample(100.0, 1.0, is_biased=True), 8, 12) == now


def test_what_a_batch_is_worth() -> None:
    # Noise scale 100: an update with 400 samples is worth (100/100 + 1) / (100/400 + 1) = 1.6
    # with 100, so each of its samples 1.6 / 4 = 0.4 of one there.
    now = known_noise(100.0, 1.0, 100)
    assert now.gain(400, 100) == pytest.approx(1.6)
    assert now.efficiency(400) == pytest.approx(0.4)
    assert (now.gain(100, 100), now.efficiency(100)) == (1.0, 1.0)
    alike = known_noise(0.0, 1.0, 100)
    assert (alike.gain(400, 100), alike.efficiency(400)) == (1.0, 0.25)
    for unknown in (UNKNOWN, known_noise(1.0, -1.0, 100)):
        assert (unknown.gain(400, 100), unknown.efficiency(400)) == (1.0, 1.0)


def test_a_learning_rate_follows_what_has_changed() -> None:
    """It stays while nothing is known any more: no rate falls for want of a measurement."""
    known = after((8.0, 4.0), times=8)
    assert known.changes == ((7, pytest.approx(2.0)),)
    assert after((8.0, -400.0), times=3, start=known).changes == known.changes
    other = after((8.0, 1.0), times=100, start=known)
    assert other.changes[-1][1] == pytest.approx(8.0, rel=0.15)
    assert NoiseScale.from_json(other.to_json()) == other


@pytest.mark.parametrize("shares", [[(8, 8)], [(4, 16)], [(8, 8), (2, 9, 21), (5,) * 6]])
def test_a_problem_whose_noise_is_known(shares: list[tuple[int, ...]]) -> None:
    """The gradient of a sample is G and independent noise.

    After 200 steps the scale is within 25 %, and the average over 64 measurements within 10 %.

    ``shares``: samples of the workers, by turns: through changes of their number, too.
    """
    chance = np.random.default_rng(7)
    signal, deviation, size = 0.5, 2.0, 64
    gradient = np.full(size, signal)
    true = size * deviation**2 / float(gradient @ gradient)  # 16 samples
    now = NoiseScale()
    for step in range(200):
        counts = shares[step * len(shares) // 200]
        own = [gradient + deviation * chance.normal(size=(n, size)).mean(axis=0) for n in counts]
        total = sum(counts)
        mean = sum(n * each for n, each in zip(counts, own, strict=True)) / total
        found = noise_sample(
            dict(enumerate(counts)),
            {w: Squares(float(each @ each), float(mean @ mean)) for w, each in enumerate(own)},
        )
        assert found is not None
        now = now.after(found, total, step + 1)
    assert now.samples == pytest.approx(true, rel=0.25)
    longer = now.averages[WINDOWS.index(64)]
    assert longer.noise / longer.signal == pytest.approx(true, rel=0.1)


# --- three trainings whose noise scale is known: by the gradients of all samples

Array = npt.NDArray[np.float64]
Gradients = Callable[[Array, Array, Array], Array]  # (weights, x, y): one row a sample


def of_a_line(w: Array, x: Array, y: Array) -> Array:
    return np.asarray((x @ w - y)[:, None] * x)


def softmax_error(z: Array, y: Array) -> Array:
    p = np.exp(z - z.max(axis=1, keepdims=True))
    return np.asarray(p / p.sum(axis=1, keepdims=True) - y)


def of_logits(w: Array, x: Array, y: Array) -> Array:
    error = softmax_error(x @ w.reshape(64, 10), y)
    return (x[:, :, None] * error[:, None, :]).reshape(len(x), -1)


def of_a_network(w: Array, x: Array, y: Array) -> Array:
    first, second = w[:1024].reshape(64, 16), w[1024:].reshape(16, 10)
    hidden = np.tanh(x @ first)
    error = softmax_error(hidden @ second, y)
    back = (error @ second.T) * (1.0 - hidden**2)
    parts = [x[:, :, None] * back[:, None, :], hidden[:, :, None] * error[:, None, :]]
    return np.concatenate([part.reshape(len(x), -1) for part in parts], axis=1)


def line(chance: np.random.Generator) -> tuple[Array, Array, Array]:
    x = chance.normal(size=(512, 20))
    y = x @ chance.normal(size=20) + 0.5 * chance.normal(size=512)
    return np.zeros(20), x, y


def digits(chance: np.random.Generator, weights: int) -> tuple[Array, Array, Array]:
    images, labels = load()
    x = np.asarray(images, dtype=np.float64).reshape(len(images), 64)[:1000]
    w = 0.2 * chance.normal(size=weights) if weights > 640 else np.zeros(weights)
    return w, x / x.max(), np.eye(10)[np.asarray(labels)[:1000]]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("begin", "gradients", "rate", "batch", "steps"),
    [
        pytest.param(line, of_a_line, 0.005, 16, 600, id="linear regression"),
        pytest.param(lambda c: digits(c, 640), of_logits, 0.05, 32, 400, id="logistic regression"),
        pytest.param(lambda c: digits(c, 1184), of_a_network, 0.05, 32, 400, id="a network"),
    ],
)
def test_it_is_the_true_one_or_unknown(
    begin: Callable[[np.random.Generator], tuple[Array, Array, Array]],
    gradients: Gradients,
    rate: float,
    batch: int,
    steps: int,
    seed: int,
) -> None:
    """Within 2 times the truth, known at four of five looks; the truth more than doubles."""
    chance = np.random.default_rng(seed)
    w, x, y = begin(chance)
    now, ratios, truths = UNKNOWN, list[float](), list[float]()
    looks = range(19, steps, 20)
    for step in range(steps):
        if step in looks:
            every = gradients(w, x, y)
            mean = every.mean(axis=0)
            truths.append(float(((every - mean) ** 2).sum() / len(x) / (mean @ mean)))
            ratios += [] if now.samples is None else [now.samples / truths[-1]]
        picked = chance.integers(0, len(x), 4 * batch)
        own = gradients(w, x[picked], y[picked]).reshape(4, batch, -1).mean(axis=1)
        mean = own.mean(axis=0)
        squares = {i: Squares(float(g @ g), float(mean @ mean)) for i, g in enumerate(own)}
        found = noise_sample(dict.fromkeys(squares, batch), squares)
        assert found is not None
        now = now.after(found, 4 * batch, step + 1)
        w = w - rate * mean
    assert truths[-1] > 2.0 * truths[0]
    assert len(ratios) >= 0.8 * len(looks)
    assert all(0.5 < ratio < 2.0 for ratio in ratios), ratios
