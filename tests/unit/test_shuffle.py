"""The order of an epoch: a pure function of (seed, epoch) that never changes."""

from __future__ import annotations

import numpy as np
import pytest

from edl.core.step.shuffle import epoch_order

FIRST = [3, 2, 1, 8, 6, 0, 7, 4, 5, 9]
SECOND = [7, 4, 5, 1, 9, 8, 6, 2, 0, 3]
NEGATIVE = [9, 0, 3, 1, 4, 6, 8, 7, 5, 2]


def test_without_shuffle_the_order_is_the_files() -> None:
    assert epoch_order(5, seed=1, epoch=2, shuffle=False).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("total", [1, 2, 3, 1797])
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
