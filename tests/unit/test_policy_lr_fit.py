"""A parabola through the loss along an update, with numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from edl.contrib.lr_rules import (
    Parabola,
    fitted,
    highest_that_holds,
    judge_learning_rate,
    lowest_loss,
    points,
    standard_errors,
)

AT = points(2.0)


def bowl(least: float, depth: float = 1.0, bottom: float = 1.0) -> tuple[float, ...]:
    """Return bottom + depth (s - least)^2, where s = 1 + e is the factor of the learning rate."""
    return tuple(bottom + depth * (1.0 + e - least) ** 2 for e in AT)


def test_it_is_measured_without_the_update_half_of_it_as_it_was_and_beyond() -> None:
    assert AT == (-1.0, -0.5, 0.0, 1.0)
    assert points(8.0) == (-1.0, -0.5, 0.0, 7.0)


def test_a_bowl_is_solved_exactly() -> None:
    # 1 + 0.4 (e - 0.5)^2 = 1.1 - 0.4 e + 0.4 e^2: 1.9, 1.4, 1.1, 1.1; e* = 0.4 / 0.8 = 0.5
    found = fitted(AT, (1.9, 1.4, 1.1, 1.1))
    assert (found.a0, found.a1, found.a2, found.r2) == pytest.approx((1.1, -0.4, 0.4, 1.0))
    assert found.minimum(2.0) == pytest.approx(1.5)


def test_how_much_it_explains() -> None:
    # What no parabola has at these points is along (-1, 8/3, -2, 1/3), the weights of the third
    # divided difference, whose square is 110/9. (0, 1, 0, 1) has 3 of it: 9 / (110/9) = 81/110 is
    # left over of 1, the sum of squares around the mean, 1/2.
    assert fitted(AT, (0.0, 1.0, 0.0, 1.0)).r2 == pytest.approx(29 / 110)
    assert fitted(AT, (2.0, 2.0, 2.0, 2.0)).r2 == 0.0


def test_losses_of_any_size() -> None:
    assert fitted(AT, (1.9e200, 1.4e200, 1.1e200, 1.1e200)).minimum(2.0) == pytest.approx(1.5)
    assert fitted(AT, (0.0, 0.0, 0.0, 0.0)).r2 == 0.0


@pytest.mark.parametrize(
    ("a1", "a2", "least"),
    [
        (-1.0, 0.0, math.inf),  # a straight line down
        (1.0, 0.0, 0.0),
        (-3.0, -1.0, math.inf),  # the slope is -1 without the update, -5 with twice of it
        (3.0, -1.0, 0.0),  # 5 and 1
        (0.0, -1.0, None),  # a hill: 2 and -2
        (0.0, 0.0, None),
    ],
)
def test_where_there_is_no_bowl(a1: float, a2: float, least: float | None) -> None:
    assert Parabola(1.0, a1, a2, 1.0).minimum(2.0) == least


@pytest.mark.parametrize(
    ("least", "explores", "exploits"),
    [
        (math.inf, 2.0, 1.0),
        (5.0, 2.0, 1.0),
        (3.0, 1.5, 1.0),  # half of it: the loss falls 3/4 as far as it can
        (1.9, 1.0, 1.0),
        (0.7, 1.0, 0.7),  # the loss falls with the update: up to 1.4 times the rate it would
        (0.4, 0.8, 0.4),  # above 0.8 times the rate it is higher than before the update
        (0.1, 0.25, 0.25),
        (-3.0, 0.25, 0.25),
    ],
)
def test_what_is_wanted(least: float, explores: float, exploits: float) -> None:
    assert highest_that_holds(least, 2.0) == pytest.approx(explores)
    assert lowest_loss(least, 2.0) == pytest.approx(exploits)


def test_standard_errors() -> None:
    # 1, 2, 3: the mean is 2, the variance 1, and the mean's error 1 / sqrt(3)
    assert standard_errors((1.0, 2.0, 3.0)) == pytest.approx(2 * math.sqrt(3))
    assert standard_errors((3.0, 3.0)) == pytest.approx(1e9)
    assert standard_errors((0.0, 0.0)) == 0.0


def test_a_change_that_all_batches_agree_on() -> None:
    verdict = judge_learning_rate(
        AT, [bowl(3.0, depth) for depth in (0.9, 1.0, 1.1, 1.0)], explores=True
    )
    assert (verdict.factor, verdict.settled) == (pytest.approx(1.5), True)
    assert "the loss is least at 3 times the learning rate (4 batches, R2 1.00" in verdict.reason
    verdict = judge_learning_rate(
        AT, [bowl(0.4, depth) for depth in (0.9, 1.0, 1.1, 1.0)], explores=True
    )
    assert (verdict.factor, verdict.settled) == (pytest.approx(0.8), True)
    verdict = judge_learning_rate(
        AT, [bowl(0.4, depth) for depth in (0.9, 1.0, 1.1, 1.0)], explores=False
    )
    assert (verdict.factor, verdict.settled) == (pytest.approx(0.4), True)


def test_a_change_that_they_do_not_agree_on() -> None:
    # The mean of bowls at 0 and 6 is least at 3; their slopes here, 2 (1 - least), are 2 and -10,
    # in turn: the mean is -4, the variance 4 * 36 / 3 = 48, the mean's error sqrt(48 / 4): that is
    # 1.2 of them.
    verdict = judge_learning_rate(AT, [bowl(0.0), bowl(6.0)] * 2, explores=True)
    assert (verdict.factor, verdict.settled) == (1.0, False)
    assert "the batches do not agree" in verdict.reason
    assert "3 times the learning rate (4 batches, R2 1.00, 1.2 standard errors" in verdict.reason


@pytest.mark.parametrize(
    ("losses", "factor", "settled", "words"),
    [
        ((0.0, 1.0, 0.0, 1.0), 1.0, False, "no parabola fits the loss (4 batches, R2 0.26"),
        ((1.0, 1.0, 1.0, 1.0), 1.0, False, "no parabola fits"),
        ((0.0, 0.75, 1.0, 0.0), 1.0, False, "curves down"),
        ((math.nan, 1.0, 1.0, 1.0), 1.0, True, "the loss is no finite number"),
        ((1.0, math.inf, math.inf, math.nan), 0.25, True, "with the update the loss is no finite"),
        ((1.0, math.inf, 1.0, math.nan), 1.0, False, "only 2 of 4 losses are finite"),
        # Up to the update itself: 1 + (e - 1)^2 - 1, least at twice the rate, beyond what is known.
        ((4.0, 2.25, 1.0, math.inf), 1.0, True, "least at 2 times the learning rate"),
        ((1.0, 2.0, 3.0, math.inf), 0.25, True, "least at"),
    ],
)
def test_what_is_not_believed(
    losses: tuple[float, ...], factor: float, settled: bool, words: str
) -> None:
    verdict = judge_learning_rate(AT, [losses] * 4, explores=True)
    assert (verdict.factor, verdict.settled) == (factor, settled)
    assert words in verdict.reason
