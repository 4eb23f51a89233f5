"""Where in a schedule of several optimizers a newcomer may begin to count."""

from __future__ import annotations

import pytest

from edl.core.step.turns import KEPT, SEEN, Turn, may_begin_after, period

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
def test_period(turns: list[Turn], expected: int | None) -> None:
    assert period(turns) == expected


def places(schedule: list[Turn], before: list[Turn], batches: int) -> list[int]:
    """After which batches of an epoch a newcomer may come in."""
    return [n for n in range(batches) if may_begin_after(n, schedule[:n], before)]


def test_in_the_first_epoch_the_schedule_must_be_known() -> None:
    """Four turns of the critic alone are no schedule."""
    assert places(CRITIC * 6, [], 30) == [19, 24, 29]
    assert places([BOTH] * 20, [], 20) == [*range(SEEN, 20)]


def test_in_the_next_one_its_rest_must_be_as_its_beginning() -> None:
    epoch = CRITIC * 4
    found = places(epoch, epoch, 20)
    assert found[:3] == [4, 9, 14]
    for begins in (after + 1 for after in found):
        assert epoch[begins:] == epoch[: 20 - begins]
    short = [*CRITIC, FIRST, FIRST, FIRST]
    assert places(short, short, 8) == [4, 5, 6, 7], "the last three are as the first"


def test_an_epoch_that_goes_another_way_is_learnt_anew() -> None:
    before = [BOTH, FIRST, FIRST, FIRST, FIRST]
    assert not may_begin_after(3, [SECOND, FIRST, SECOND], before)
    assert places([SECOND, FIRST] * 10, before, 20) == [17, 19]


def test_what_does_not_repeat_itself_is_not_waited_for() -> None:
    turns = [SECOND] + [FIRST] * (KEPT - 1)
    assert may_begin_after(1000, turns, [])
    assert not may_begin_after(100, turns[:100], [])
