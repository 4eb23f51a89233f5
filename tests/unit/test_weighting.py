"""The weights that make a step's update the mean over its global batch."""

from __future__ import annotations

import numpy as np
import pytest

from edl.errors import DataError
from edl.step.weighting import (
    Averaging,
    Share,
    Weights,
    average_correction,
    presence,
    present,
    send_weight,
    weigh,
)


def update(gradients: list[float], samples: list[int], batch_size: int) -> float:
    """Return what a step applies: weigh, average as Horovod does, correct."""
    sent = [g * send_weight(n, batch_size) for g, n in zip(gradients, samples, strict=True)]
    average = sum(sent) / len(sent)
    return average * average_correction(batch_size, len(samples), sum(samples))


def weights_of(shares: list[Share], own: Share) -> Weights:
    samples, batches = zip(*((share.samples, share.batches) for share in shares), strict=True)
    return weigh(np.array(samples), np.array(batches), own, batch_size=4)


def single(samples: list[int], own: int) -> Weights:
    """Of workers with a batch each."""
    return weights_of([Share(each) for each in samples], Share(own))


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
    with pytest.raises(DataError, match="a step of 3 batches has 0 samples"):
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
    found = [single(samples, own) for own in samples]
    assert {weights.averaging for weights in found} == {averaging}
    assert {weights.sends for weights in found} == {
        averaging in (Averaging.PLAIN, Averaging.WEIGHTED)
    }


def test_what_each_worker_multiplies_by() -> None:
    assert single([4, 4], 4) == Weights(Averaging.PLAIN, 1.0, 1.0, 8)
    assert single([4, 2, 0], 2) == Weights(Averaging.WEIGHTED, 0.5, 2.0, 6)
    assert single([4, 2, 0], 0) == Weights(Averaging.WEIGHTED, 0.0, 2.0, 6)
    assert single([2], 2) == Weights(Averaging.LOCAL, 1.0, 1.0, 2)


def test_sums_over_batches_are_the_mean_over_all_samples() -> None:
    """Two workers with 3 batches each, whose losses are divided by 3; the last ones are uneven."""
    held: list[list[tuple[int, float]]] = [[(4, 3.0), (4, 6.0), (2, 9.0)], [(4, 12.0), (1, 3.0)]]
    batches = [Share(sum(n for n, _ in worker), 3, summed=True) for worker in held]
    sums = [sum(Share(n).send_weight(4) * g / 3 for n, g in worker) for worker in held]
    weights = [weights_of(batches, own) for own in batches]
    average = sum(w.sent * s for w, s in zip(weights, sums, strict=True)) / 2
    total = sum(n * g for worker in held for n, g in worker)
    assert average * weights[0].received == pytest.approx(total / 15)
    assert {each.averaging for each in weights} == {Averaging.WEIGHTED}


def test_full_batches_need_no_weights_however_many_they_are() -> None:
    full = [Share(12, 3, summed=True), Share(4)]
    for own in full:
        assert weights_of(full, own) == Weights(Averaging.PLAIN, total=16)


def test_alone_only_sums_are_corrected() -> None:
    assert weights_of([Share(6, 2)], Share(6, 2, True)).received == pytest.approx(8 / 6)
    assert weights_of([Share(3)], Share(3)).received == 1.0


def test_who_lost_its_samples_sends_nothing_of_its_sums() -> None:
    assert weights_of([Share(0, 3), Share(12, 3)], Share(0, 3, True)).sent == 0.0


def test_who_has_a_gradient_is_decided_together() -> None:
    assert presence(4, [True, False]) == [1.0, 0.0, 0.0]
    assert presence(0, [True, False]) == [0.0, 0.0, 0.0], "what it has computed counts for nothing"
    assert present([0.5, 0.0, 1 / 1000, 0.0]) == ([True, False, True], False)
    assert presence(4, [True, False], is_void=True) == [1.0, 0.0, 1.0]
    assert present([0.5, 0.0, 1 / 1000]) == ([True, False], True)
