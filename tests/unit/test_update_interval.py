"""LR schedulers make as many steps by samples as Lightning makes by batches."""

from __future__ import annotations

import itertools

import pytest

from edl.core.step.update_interval import UpdateInterval

BATCH = 8


def steps_of_lightning(interval: UpdateInterval, epochs: range) -> list[tuple[int, int]]:
    """Return the samples trained after each update, and the steps of the scheduler by then.

    The rules are those of Lightning's loops: ``_should_accumulate`` and ``update_lr_schedulers``.
    """
    found, trained, steps, accumulated = [], 0, 0, 1
    assert interval.samples is not None
    for epoch in epochs:
        for start in sorted(interval.accumulated):
            accumulated = interval.accumulated[start] if start <= epoch else accumulated
        batches = -(-interval.samples // BATCH)
        last = min(batches, interval.limit or batches)
        for ready in range(1, last + 1):
            trained += min(BATCH, interval.samples - (ready - 1) * BATCH)
            if ready % accumulated == 0 or ready == last:
                steps += ready % interval.frequency == 0
                found.append((trained, steps))
    return found


@pytest.mark.parametrize("samples", [1, 8, 96, 97, 130])
@pytest.mark.parametrize("limit", [None, 1, 5, 99])
@pytest.mark.parametrize("accumulated", [{0: 1}, {0: 4}, {0: 1, 2: 4}, {0: 3, 1: 1, 4: 2}])
def test_they_step_after_the_updates_of_lightning(
    accumulated: dict[int, int], limit: int | None, samples: int
) -> None:
    for frequency, first in itertools.product((1, 2, 3, 4), (0, 1, 3)):
        interval = UpdateInterval(frequency, accumulated, samples, limit)
        expected = steps_of_lightning(interval, range(first, first + 6))
        found = [(n, interval.steps(n, BATCH, first_epoch=first)) for n, _ in expected]
        assert found == expected


def test_a_stream_is_one_long_epoch() -> None:
    interval = UpdateInterval(frequency=1, accumulated={0: 4}, samples=None)
    assert [interval.steps(n, BATCH) for n in (0, 31, 32, 640)] == [0, 0, 1, 20]


def test_steps_that_depend_on_an_epoch_without_a_length_are_unknown() -> None:
    assert UpdateInterval(1, {0: 4}, samples=None).is_known
    assert UpdateInterval(1, {0: 1, 2: 4}, samples=96).is_known
    assert UpdateInterval(1, {0: 1, 2: 4}, samples=None, limit=6).is_known
    assert not UpdateInterval(1, {0: 1, 2: 4}, samples=None).is_known
