"""Where in a schedule of several optimizers a newcomer may begin to count."""

from __future__ import annotations

import json

import pytest

from edl.step.source import KEPT, SEEN, UpdateOrder, Updates, period

BOTH, FIRST, SECOND = (1, 2), (1,), (2,)
CRITIC = [FIRST] * 4 + [BOTH]  # `if (number + 1) % 5 == 0`


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ([], None),
        ([BOTH], None),  # seen once
        ([BOTH] * 7, 1),
        ([BOTH, FIRST, BOTH], None),
        ([BOTH, FIRST, BOTH, FIRST, BOTH], 2),
        ([BOTH, FIRST, FIRST, BOTH, FIRST, FIRST, BOTH], 3),
        ([SECOND, FIRST, SECOND, FIRST, FIRST], None),
    ],
)
def test_period(turns: list[Updates], expected: int | None) -> None:
    assert period(turns) == expected


def lived(turns: list[Updates], schedule: UpdateOrder | None = None) -> list[UpdateOrder]:
    """Return the order in each batch of an epoch that takes these turns, and after the last."""
    lives = [schedule or UpdateOrder()]
    for turn in turns:
        now = lives[-1]
        for updated in turn:
            now = now.after_step(updated)
        lives.append(now.after_batch())
    return lives


def places(turns: list[Updates], before: list[Updates]) -> list[int]:
    """After which batches of an epoch a newcomer may come in."""
    lives = lived(turns, lived(before)[-1].next_epoch())
    return [life.batch for life in lives[:-1] if life.takes_newcomers(ends_epoch=False)]


def test_in_the_first_epoch_the_schedule_must_be_known() -> None:
    """Four turns of the critic alone are no schedule."""
    assert places(CRITIC * 6, []) == [19, 24, 29]
    assert places([BOTH] * 20, []) == [*range(SEEN, 20)]


def test_the_next_one_knows_the_schedule_from_its_beginning() -> None:
    epoch = CRITIC * 4
    assert places(epoch, epoch) == [4, 9, 14, 19]
    longer = CRITIC * 5
    assert places(longer, epoch) == [4, 9, 14, 19, 24], "a worker less, more batches"


def test_what_is_too_short_to_tell_waits_for_the_end_of_the_epoch() -> None:
    short = [*CRITIC, FIRST, FIRST, FIRST]
    assert places(short, short) == []
    assert lived(short)[-1].takes_newcomers(ends_epoch=True)


def test_an_epoch_that_goes_another_way_is_learnt_anew() -> None:
    assert places([SECOND, FIRST] * 10, [BOTH, FIRST, FIRST, FIRST, FIRST]) == [17, 19]


def test_what_does_not_repeat_itself_is_not_waited_for() -> None:
    found = places([SECOND] + [FIRST] * (KEPT + 9), [])
    assert found == [*range(KEPT, KEPT + 10)]


def test_a_newcomer_gets_the_schedule() -> None:
    (*_, now) = lived(CRITIC * 2, lived(CRITIC)[-1].next_epoch())
    assert UpdateOrder.restore(json.loads(json.dumps(now.snapshot()))) == now


def test_one_optimizer_has_none_and_its_batches_are_counted() -> None:
    now = UpdateOrder().after_batch().after_batch()
    assert (now.batch, now.of_batches) == (2, ())
