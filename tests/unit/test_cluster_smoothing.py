"""Noise is taken out of step times as far as their error says that it is noise."""

from __future__ import annotations

import numpy as np
import pytest

from edl.cluster.policies.edl import MAX_AVERAGED, averaged, smoothed

TRIED = np.meshgrid([1.0, 2.0, 3.0, 4.0, 8.0, 16.0, 32.0], [32.0, 64.0, 128.0, 256.0, 512.0])
SLOTS, BATCHES = (of.ravel() for of in TRIED)
NODES = np.ceil(SLOTS / 4)
SMOOTH = 0.2 * BATCHES**0.9 / SLOTS**0.8  # a law of the terms that are fitted
NOISE = np.exp(0.1 * np.random.default_rng(0).standard_normal(len(SLOTS)))


def rms(found, true=SMOOTH) -> float:
    return float(np.sqrt(np.mean(np.log(found / true) ** 2)))


def test_smooth_times_stay_and_their_error_falls_by_what_is_fitted() -> None:
    found, left = smoothed(SMOOTH, SLOTS, NODES, BATCHES, 0.1)
    assert found == pytest.approx(SMOOTH)
    assert left == pytest.approx(0.1 * np.sqrt(10 / 35))  # 10 terms by 35 times


def test_noise_that_is_known_is_taken_out() -> None:
    noisy = SMOOTH * NOISE
    found, left = smoothed(noisy, SLOTS, NODES, BATCHES, 0.1)
    assert rms(found) < 0.75 * rms(noisy)
    assert rms(found) < left < 0.75 * rms(noisy)


def test_what_the_error_does_not_explain_is_kept() -> None:
    noisy = SMOOTH * NOISE
    found, left = smoothed(noisy, SLOTS, NODES, BATCHES, 0.001)
    assert found == pytest.approx(noisy, rel=1e-3)
    assert left == pytest.approx(0.001, rel=1e-2)


def test_a_few_times_are_left_as_they_are() -> None:
    few = slice(0, 4)
    given = (SMOOTH * NOISE)[few], SLOTS[few], NODES[few], BATCHES[few]
    found, left = smoothed(*given, 0.1)
    assert found is given[0]
    assert left == 0.1


def test_times_are_averaged_over_decisions() -> None:
    first, count, means = averaged([1.0, 8.0], ["a", "b"], {})
    assert (first.tolist(), count) == (pytest.approx([1.0, 8.0]), 1)
    then, count, means = averaged([4.0, 2.0, 5.0], ["a", "b", "new"], means)
    assert then.tolist() == pytest.approx([2.0, 4.0, 5.0])  # geometric means
    assert [of[1] for of in means.values()] == [2, 2, 1]
    assert count == 2  # the median
    for _ in range(MAX_AVERAGED):
        _, count, means = averaged([4.0], ["a"], means)
    assert (count, [*means]) == (MAX_AVERAGED, ["a"])
