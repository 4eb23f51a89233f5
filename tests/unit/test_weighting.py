"""The weights that make a step's update the mean over its global batch."""

from __future__ import annotations

import pytest

from edl.core.step.weighting import (
    Averaging,
    Weights,
    average_correction,
    presence,
    present,
    send_weight,
    weigh,
)
from edl.errors import DataError


def update(gradients: list[float], samples: list[int], batch_size: int) -> float:
    """What a step applies: weigh, average as Horovod does, correct."""
    sent = [g * send_weight(n, batch_size) for g, n in zip(gradients, samples, strict=True)]
    average = sum(sent) / len(sent)
    return average * average_correction(batch_size, len(samples), sum(samples))


def test_a_full_step_is_plain_horovod_bit_for_bit() -> None:
    for batch_size in (1, 3, 32, 100):
        for size in (1, 3, 7):
            assert send_weight(batch_size, batch_size) == 1.0
            assert average_correction(batch_size, size, batch_size * size) == 1.0


def test_an_uneven_step_is_the_mean_over_all_samples() -> None:
    # Means of 4, 2 and 1 samples: (4 * 1.0 + 2 * 4.0 + 1 * 9.0) / 7
    assert update([1.0, 4.0, 9.0], [4, 2, 1], batch_size=4) == pytest.approx(3.0)


def test_a_worker_without_data_counts_for_nothing() -> None:
    assert update([1.0, 1e6], [4, 0], batch_size=4) == pytest.approx(1.0)


def test_one_small_batch_alone_keeps_its_own_mean() -> None:
    assert update([5.0], [1], batch_size=32) == pytest.approx(5.0)


def test_a_step_without_samples_has_no_mean() -> None:
    with pytest.raises(DataError, match="a step of 3 workers has 0 samples"):
        average_correction(32, 3, 0)


@pytest.mark.parametrize(
    ("samples", "averaging"),
    [
        ([4, 4, 4], Averaging.PLAIN),
        ([4, 3, 4], Averaging.WEIGHTED),
        ([3, 3, 3], Averaging.WEIGHTED),
        ([4, 0, 4], Averaging.WEIGHTED),
        ([4], Averaging.LOCAL),
        ([1], Averaging.LOCAL),
        ([0], Averaging.NONE),
        ([0, 0, 0], Averaging.NONE),
    ],
)
def test_what_a_step_needs(samples: list[int], averaging: Averaging) -> None:
    found = [weigh(samples, own, batch_size=4) for own in samples]
    assert {weights.averaging for weights in found} == {averaging}
    assert {weights.sends for weights in found} == {
        averaging in (Averaging.PLAIN, Averaging.WEIGHTED)
    }


def test_what_each_worker_multiplies_by() -> None:
    assert weigh([4, 4], 4, batch_size=4) == Weights(Averaging.PLAIN, 1.0, 1.0)
    assert weigh([4, 2, 0], 2, batch_size=4) == Weights(Averaging.WEIGHTED, 0.5, 2.0)
    assert weigh([4, 2, 0], 0, batch_size=4) == Weights(Averaging.WEIGHTED, 0.0, 2.0)
    assert weigh([2], 2, batch_size=4) == Weights(Averaging.LOCAL, 1.0, 1.0)


def test_who_has_a_gradient_is_decided_together() -> None:
    assert presence(4, [True, False]) == [1.0, 0.0]
    assert presence(0, [True, False]) == [0.0, 0.0], "what it has computed counts for nothing"
    assert present([0.5, 0.0, 1 / 1000]) == [True, False, True]
