"""The weights that make a step's update the mean over its global batch."""

from __future__ import annotations

import pytest

from edl.core.step.weighting import Reduction, average_correction, reduction, send_weight
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
    ("samples", "needed"),
    [
        ([4, 4, 4], Reduction.PLAIN),
        ([4, 3, 4], Reduction.WEIGHTED),
        ([3, 3, 3], Reduction.WEIGHTED),
        ([4, 0, 4], Reduction.WEIGHTED),
        ([4], Reduction.LOCAL),
        ([1], Reduction.LOCAL),
        ([0], Reduction.NONE),
        ([0, 0, 0], Reduction.NONE),
    ],
)
def test_what_a_step_needs(samples: list[int], needed: Reduction) -> None:
    assert reduction(samples, batch_size=4) is needed
