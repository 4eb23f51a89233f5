"""The cost rule: time and money of a training, by numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edl.policy.hill_climbing import UNKNOWN_END, Cost, worth
from edl.policy.observation import Observation, SizeMeasurement
from edl.spec import Sizes
from edl.text import span

HOUR = 3600.0
# 1 worker trains 100 samples a second, 2 train 180, 3 train 240, 4 train 280. After 1000 s with one
# worker, 720,000 samples are left: 7200 s, 4000 s, 3000 s or 2571.4 s.
RATES = {1: 100.0, 2: 180.0, 3: 240.0, 4: 280.0}
NOW = Observation(
    np=2,
    sizes=Sizes(1, 4),
    steps=50,
    seen={np: SizeMeasurement(rate, 100) for np, rate in RATES.items()},
    elapsed_s=1000.0,
    worker_s=1000.0,
    left=720_000.0,
)


def found(rule: Cost, now: Observation = NOW) -> int:
    for _ in range(10):
        np = rule(now, {}, 0.0).np
        if np == now.np:
            return np
        now = replace(now, np=np)
    raise AssertionError("it does not settle")


def test_the_forecast() -> None:
    rule = Cost(price=3.6)  # a thousandth a second
    assert rule.forecast(NOW, 1) == pytest.approx((8200.0, 1.0 + 7.2))
    assert rule.forecast(NOW, 2) == pytest.approx((5000.0, 1.0 + 8.0))
    assert rule.forecast(NOW, 3) == pytest.approx((4000.0, 1.0 + 9.0))
    assert rule.forecast(NOW, 4) == pytest.approx((3571.4, 1.0 + 10.286), rel=1e-4)


@pytest.mark.parametrize(
    ("deadline_s", "np"), [(9000.0, 1), (6000.0, 2), (4100.0, 3), (3600.0, 4), (2000.0, 4)]
)
def test_as_few_as_meet_the_deadline(deadline_s: float, np: int) -> None:
    assert found(Cost(deadline_s=deadline_s)) == np


@pytest.mark.parametrize(("max_cost", "np"), [(100.0, 4), (10.5, 3), (9.5, 2), (8.5, 1), (0.5, 1)])
def test_as_fast_as_the_money_allows(max_cost: float, np: int) -> None:
    assert found(Cost(price=3.6, max_cost=max_cost)) == np


def test_the_money_counts_more_than_the_deadline() -> None:
    assert found(Cost(price=3.6, deadline_s=4100.0, max_cost=9.5)) == 2


def test_a_size_that_is_no_faster_does_not_help() -> None:
    slower = {**NOW.seen, 3: SizeMeasurement(170.0, 100), 4: SizeMeasurement(160.0, 100)}
    assert found(Cost(deadline_s=2000.0), replace(NOW, seen=slower)) == 2


def test_a_utility_weighs_time_against_money() -> None:
    # Linear, as theirs: y0 = 10, x0 = 3 h, so an hour is worth 3.33. From 1 to 2 workers 3200 s are
    # gained, 2.963, for 0.8 more; from 2 to 3 1000 s, 0.926, for 1.0 more.
    linear = ((0.0, 10.0), (3 * HOUR, 0.0))
    rule = Cost(price=3.6, utility=linear)
    assert rule.compare(NOW, 1, 2).pays
    assert not rule.compare(NOW, 2, 3).pays
    assert found(rule) == 2
    assert found(Cost(price=3.6, utility=((0.0, 100.0), (3 * HOUR, 0.0)))) == 4
    # Stepped: 10 until 4500 s, nothing after 5500 s. At 5000 s it is half.
    steps = ((4500.0, 10.0), (5500.0, 0.0))
    assert found(Cost(price=3.6, utility=steps)) == 3


def test_a_value_between_and_beyond_points() -> None:
    curve = ((100.0, 8.0), (200.0, 4.0), (400.0, 0.0))
    at = [worth(curve, seconds) for seconds in (0.0, 100.0, 150.0, 200.0, 300.0, 400.0, 500.0)]
    assert at == pytest.approx([8.0, 8.0, 6.0, 4.0, 2.0, 0.0, -2.0])
    assert worth(((100.0, 5.0),), 900.0) == 5.0


def test_without_an_end_nothing_is_changed() -> None:
    verdict = Cost(deadline_s=10.0).compare(replace(NOW, left=None), 1, 2)
    assert (verdict.pays, verdict.why) == (False, UNKNOWN_END)
    stays = Cost(deadline_s=10.0)(replace(NOW, left=None), {"a": 1}, 0.0)
    assert stays == (2, f"stays at 2: {UNKNOWN_END}", {"a": 1})


def test_it_says_the_numbers() -> None:
    rule = Cost(price=3.6, deadline_s=4100.0, max_cost=9.5)
    assert rule.compare(NOW, 2, 3).why == "with 3 it ends after 67 min for 10.00, more than 9.50"
    assert rule.compare(NOW, 3, 4).why == "with 3 after 67 min for 10.00, before its deadline"
    assert [span(s) for s in (45.0, 119.4, 120.0, 7000.0, 7200.0, 9000.0)] == [
        "45 s", "119 s", "2 min", "117 min", "2.0 h", "2.5 h",
    ]  # fmt: skip
