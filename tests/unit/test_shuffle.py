"""The order of an epoch: a pure function of (seed, epoch) that never changes."""

from __future__ import annotations

import numpy as np
import pytest

from edl.step.source import BLOCK, SORTED, EpochOrder, Indices

FIRST = [3, 2, 1, 8, 6, 0, 7, 4, 5, 9]
SECOND = [7, 4, 5, 1, 9, 8, 6, 2, 0, 3]
NEGATIVE = [9, 0, 3, 1, 4, 6, 8, 7, 5, 2]
LONG = 100_003  # computed a block at a time
FIRST_OF_LONG = [27449, 62712, 91672, 3686, 57011]
OF_VERY_LONG = [274836148874, 98295571427]


def epoch_order(total: int, seed: int, epoch: int, shuffle: bool) -> Indices:
    return EpochOrder(total, seed, epoch, shuffle).at(0, total)


def test_without_shuffle_the_order_is_the_files() -> None:
    assert epoch_order(5, seed=1, epoch=2, shuffle=False).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("total", [1, 2, 3, 1797, SORTED, SORTED + 1, LONG, 2**17])
def test_every_record_stands_at_one_position(total: int) -> None:
    order = epoch_order(total, seed=7, epoch=3, shuffle=True)
    assert order.shape == (total,)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(total))


def test_the_order_is_the_same_everywhere_and_for_ever() -> None:
    """A checkpoint is resumed at the exact sample, with a newer numpy too."""
    assert epoch_order(10, 0, 0, True).tolist() == FIRST
    assert epoch_order(10, 0, 1, True).tolist() == SECOND
    assert epoch_order(10, -1, 0, True).tolist() == NEGATIVE
    assert EpochOrder(LONG, 0, 0, True).at(0, 5).tolist() == FIRST_OF_LONG
    assert EpochOrder(10**12, 0, 1, True).at(10**11, 10**11 + 2).tolist() == OF_VERY_LONG


def test_each_epoch_and_each_seed_has_an_order_of_its_own() -> None:
    orders = {tuple(epoch_order(100, seed, epoch, True)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_positions_are_used_evenly() -> None:
    """Over many epochs each record stands in the first half about half the time."""
    total, epochs = 20, 400
    first = sum(
        np.isin(np.arange(total), epoch_order(total, 3, e, True)[:10]) for e in range(epochs)
    )
    assert np.all(np.abs(first - epochs / 2) < 5 * np.sqrt(epochs / 4))


@pytest.mark.parametrize("total", [1797, LONG])
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_part_is_that_of_the_whole(total: int, shuffle: bool) -> None:
    whole, order = epoch_order(total, 5, 1, shuffle), EpochOrder(total, 5, 1, shuffle)
    for start in (0, 1, BLOCK - 1, BLOCK, 3 * BLOCK + 7, total - 3, total, total + 5):
        for stop in (start, start + 1, start + 40, start + 3 * BLOCK):
            assert np.array_equal(order.at(start, stop), whole[start:stop])


def test_a_long_order_is_as_random_as_a_sorted_one() -> None:
    """Each record falls into each tenth evenly, and neighbours do not stay neighbours."""
    order = epoch_order(LONG, 11, 2, True)
    counts = np.histogram2d(np.arange(LONG), order, bins=10)[0]
    expected = LONG / 100
    assert ((counts - expected) ** 2 / expected).sum() < 160.0  # 99 expected, 14 of deviation
    assert (np.abs(np.diff(order)) == 1).sum() < 15  # 2 expected
    other = epoch_order(LONG, 11, 3, True)
    assert abs(np.corrcoef(order, other)[0, 1]) < 0.02
    assert (order == other).sum() < 10  # 1 expected


def test_nobody_waits_for_a_hundred_million_numbers() -> None:
    order = EpochOrder(10**8, 3, 0, True)
    assert len(order.at(10**7, 10**7 + 32)) == 32
    assert order._whole is None
