"""LR schedulers make as many steps in a job as Lightning makes by batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from edl.step.source import EpochPosition, UpdateInterval

BATCH = 8


def updates(
    interval: UpdateInterval, epochs: range, batch: Callable[[int, int], int] = lambda *_: BATCH
) -> Iterator[tuple[int, EpochPosition, bool]]:
    """Yield for each update what Lightning's loops have trained before, and if they step after it.

    It is the number of samples, and the position with the index of the update's last batch. The
    rules are those of Lightning: ``_should_accumulate`` and ``update_lr_schedulers``.
    """
    trained, accumulated = 0, 1
    assert interval.samples is not None
    for number, epoch in enumerate(epochs):
        for start in sorted(interval.accumulated):
            accumulated = interval.accumulated[start] if start <= epoch else accumulated
        ready = done = in_group = 0
        while done + in_group < interval.samples and ready != interval.limit:
            in_group += min(batch(number, ready), interval.samples - done - in_group)
            ready += 1
            is_last = done + in_group == interval.samples or ready == interval.limit
            if ready % accumulated == 0 or is_last:
                at = EpochPosition(number, ready - 1, interval.limit or 0, done)
                yield trained, at, ready % interval.frequency == 0
                done, trained, in_group = done + in_group, trained + in_group, 0


@pytest.mark.parametrize("samples", [1, 8, 96, 97, 130])
@pytest.mark.parametrize("limit", [None, 1, 5, 99])
@pytest.mark.parametrize("accumulated", [{0: 1}, {0: 4}, {0: 1, 2: 4}, {0: 3, 1: 1, 4: 2}])
def test_they_step_after_the_updates_of_lightning(
    accumulated: dict[int, int], limit: int | None, samples: int
) -> None:
    for frequency, first in itertools.product((1, 2, 3, 4), (0, 1, 3)):
        interval = UpdateInterval(frequency, accumulated, samples, limit)
        made = 0
        for trained, at, steps in updates(interval, range(first, first + 6)):
            if limit is None:
                assert interval.steps(trained, BATCH, first_epoch=first) == made
            else:
                assert interval.limited_steps(at, BATCH, first_epoch=first) == made
            made += steps


GROWS, SHRINKS = (8, 32, 32, 32), (32, 8, 16, 8)


@pytest.mark.parametrize("sizes", [GROWS, SHRINKS], ids=["grows", "shrinks"])
@pytest.mark.parametrize("samples", [6400, None])
def test_limited_epochs_have_the_steps_of_the_first_workers(
    sizes: tuple[int, ...], samples: int | None
) -> None:
    """Of the first epoch 20 batches are trained with the first size, and the rest with another."""

    def batch(epoch: int, ready: int) -> int:
        return sizes[epoch] if epoch or ready < 20 else sizes[1]

    first = sizes[0]
    data = UpdateInterval(1, {0: 1}, 6400, limit=50)
    interval = data._replace(samples=samples)
    found = [interval.limited_steps(at, first) for _, at, _ in updates(data, range(4), batch)]
    assert found == [*range(200)]


def test_an_epoch_whose_samples_end_before_its_limit_has_as_many_steps() -> None:
    """The limit ends the first worker's epochs, and those of four workers end after 25 batches."""
    interval = UpdateInterval(1, {0: 1}, samples=800, limit=50)
    lines = updates(interval, range(3), lambda epoch, _: 32 if epoch else BATCH)
    found = [interval.limited_steps(at, BATCH) for _, at, _ in lines]
    assert found == [*range(50), *range(50, 150, 2)]


def test_an_epoch_that_its_limit_ends_before_its_samples_has_as_many_steps() -> None:
    """Without a limit for the first four workers, of 25 batches each; then one worker has 50."""
    interval = UpdateInterval(1, {0: 1}, samples=800, limit=50)
    lines = updates(interval, range(3), lambda epoch, _: BATCH if epoch else 32)
    found = [interval.limited_steps(at, 32) for _, at, _ in lines]
    assert found == [*range(25), *(25 + n // 2 for n in range(100))]


def test_the_accumulation_changes_at_its_epoch_whatever_the_workers() -> None:
    interval = UpdateInterval(1, {0: 1, 2: 4}, 100_000, limit=10)
    found = [
        interval.limited_steps(at, BATCH) for _, at, _ in updates(interval, range(4), lambda *_: 32)
    ]
    assert found == [*range(20), 20, 21, 22, 23, 24, 25]


def test_a_fraction_of_the_data_is_another_number_of_batches_after_a_resume() -> None:
    """The job began with a limit of 40 batches, and its new workers have one of 10."""
    interval = UpdateInterval(1, {0: 1}, samples=640, limit=40)
    found = [interval.limited_steps(EpochPosition(1, n, 10, 32 * n), BATCH) for n in (0, 1, 5, 9)]
    assert found == [40, 44, 60, 76]


def test_a_stream_is_one_long_epoch() -> None:
    interval = UpdateInterval(frequency=1, accumulated={0: 4}, samples=None)
    assert [interval.steps(n, BATCH) for n in (0, 31, 32, 640)] == [0, 0, 1, 20]


def test_steps_that_depend_on_an_epoch_without_a_length_are_unknown() -> None:
    assert UpdateInterval(1, {0: 4}, samples=None).is_known
    assert UpdateInterval(1, {0: 1, 2: 4}, samples=96).is_known
    assert UpdateInterval(1, {0: 1, 2: 4}, samples=None, limit=6).is_known
    assert not UpdateInterval(1, {0: 1, 2: 4}, samples=None).is_known
