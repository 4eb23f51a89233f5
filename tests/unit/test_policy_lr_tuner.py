"""When a tuner measures, what it decides, and that it stays within its limits."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edl.contrib.lr_rules import (
    MAX_UPDATES,
    MIN_UPDATES,
    SETTLE,
    MeasuredUpdate,
    TunerState,
    Tuning,
    points,
)

BATCH = 10
TUNING = Tuning(total=10_000, explore=5_000, share=0.03, least=1e-3, most=1e3)


def now(samples: float, losses: Sequence[float] | None, cost_s: float = 0.0) -> MeasuredUpdate:
    """Return a measurement in which an update of 10 samples takes 0.1 s.

    The whole training takes 100 s, of which 3 s may go to measuring.
    """
    return MeasuredUpdate(samples, BATCH, None if losses is None else tuple(losses), cost_s, 0.1)


def bowl(state: TunerState, least: float) -> list[float]:
    """Losses that are least at a factor of the learning rate."""
    return [1.0 + (1.0 + e - least) ** 2 for e in points(state.reach)]


def a_round(state: TunerState, samples: float, least: float, cost_s: float = 0.0) -> TunerState:
    """Make the checks of a step up, and as many equal measured updates as the fewest."""
    for _ in range(MIN_UPDATES + state.checks):
        state = TUNING.measured(state, now(samples, bowl(state, least), cost_s))
    return state


def test_it_begins_at_a_tenth_and_measures_when_momentum_has_built_up() -> None:
    state = TUNING.begin(1.0)
    assert state.rate == 0.1
    assert TUNING.rate_at(state, 10) == 0.1
    assert [TUNING.is_due(state, at, BATCH) for at in (190, 200)] == [False, True]  # 20 updates
    assert not TUNING.is_due(replace(state, measures=True), 200, BATCH)
    assert not TUNING.is_due(state, 10_000, BATCH)  # there is no update after it


def test_it_climbs_as_far_as_it_has_measured_and_measures_twice_as_far_then() -> None:
    state = a_round(TUNING.begin(1.0), 100, least=400.0)
    assert (state.rate, state.reach) == (pytest.approx(0.4), 8.0)
    state = a_round(state, 200, least=100.0)
    assert (state.rate, state.reach) == (pytest.approx(3.2), 8.0)
    # Half of the minimising rate, and that is within what was measured.
    state = a_round(state, 300, least=5.0)
    assert (state.rate, state.reach) == (pytest.approx(8.0), 2.0)
    assert state.reason.startswith("3.2 -> 8 at 300 of 10000 samples: the loss is least at 5 times")


def test_exploring_holds_between_the_minimum_and_the_growth_of_the_loss() -> None:
    state = replace(TUNING.begin(10.0), reach=2.0)
    for least, rate in ((1.9, 1.0), (0.6, 1.0), (0.3, 0.6), (0.01, 0.25)):
        assert a_round(state, 100, least).rate == pytest.approx(rate)


def test_after_a_change_momentum_settles_and_without_one_it_waits_longer() -> None:
    state = a_round(TUNING.begin(1.0), 100, least=400.0)
    assert state.next_at == 100, "the first loss after a step up is looked at at once"
    state = TUNING.measured(state, now(120, bowl(state, 100.0)))
    assert state.next_at == 100 + SETTLE * BATCH == 300
    # Twice the 200 samples would be 400, but it looks 32 times in 10,000.
    assert a_round(state, 1000, least=0.6).next_at == 1000 + 312.5
    long = replace(TUNING, total=100_000, explore=50_000)
    for at, pause in ((1000, 400), (2000, 800), (3000, 1600), (5000, 3125), (9000, 3125)):
        for _ in range(MIN_UPDATES):
            state = long.measured(state, now(at, bowl(state, 0.6)))
        assert state.next_at == at + pause


def test_exploiting_takes_the_minimum_and_stays_below_the_straight_line_to_0() -> None:
    state = replace(TUNING.begin(10.0), peak=1.0, decided_at=5000.0, reach=2.0)
    assert [TUNING.rate_at(state, at) for at in (5000, 6000, 9000)] == [1.0, 0.8, 0.2]
    assert TUNING.rate_at(state, 10_000) == TUNING.rate_at(state, 11_000) == 0.0
    assert a_round(state, 6000, least=7.0).rate == 1.0  # never up
    lowered = a_round(state, 6000, least=0.5)
    assert lowered.rate == pytest.approx(0.4)  # 0.8 * 0.5
    assert TUNING.rate_at(lowered, 7500) == pytest.approx(0.4)
    assert TUNING.rate_at(lowered, 9000) == pytest.approx(0.2)  # the line again
    # At once no further than by 100 in the whole of it: 1,000 of its 5,000 samples are 100^-0.2.
    assert a_round(state, 6000, least=-2.0).rate == pytest.approx(0.8 * 100**-0.2)
    assert replace(TUNING, least=0.5).measured(
        replace(state, curves=(tuple(bowl(state, 0.1)),) * MIN_UPDATES), now(9000, bowl(state, 0.1))
    ).rate == pytest.approx(0.2)  # the lower limit does not lift it


def test_the_limits_hold() -> None:
    narrow = replace(TUNING, least=0.08, most=0.15)
    assert narrow.begin(1.0).rate == 0.1
    assert narrow.begin(0.5).rate == 0.08
    state = narrow.begin(1.0)
    for least, rate in ((100.0, 0.15), (0.0, 0.08)):
        for _ in range(MIN_UPDATES + state.checks):
            state = narrow.measured(state, now(100, bowl(state, least)))
        assert state.rate == rate


def test_what_the_batches_do_not_agree_on_changes_nothing() -> None:
    state = replace(TUNING.begin(10.0), reach=2.0)
    for number in range(MAX_UPDATES):
        assert (state.rate, len(state.curves)) == (1.0, number)
        state = TUNING.measured(state, now(100, bowl(state, 0.0 if number % 2 else 6.0)))
    assert (state.rate, state.curves) == (1.0, ())
    assert state.reason.startswith("keeps 1 at 100 of 10000 samples: the batches do not agree")
    assert f"({MAX_UPDATES} batches, R2 1.00, " in state.reason


def test_measuring_stays_below_its_share() -> None:
    # 0.03 of 100 s are 3 s, half of them at once: 1.5 s.
    state = TUNING.begin(1.0)
    state = TUNING.measured(state, now(10, bowl(state, 400.0), cost_s=0.5))
    assert state.next_at == 10  # 1 s with another
    state = TUNING.measured(state, now(30, bowl(state, 400.0), cost_s=0.5))
    assert state.next_at == 30  # 1.5 s
    state = TUNING.measured(state, now(50, bowl(state, 400.0), cost_s=0.5))
    # 2 s with another: a third of the 1.5 s that come evenly.
    assert (state.rate, len(state.curves)) == (0.1, 3)
    assert state.next_at == pytest.approx(10_000 / 3)
    state = TUNING.measured(state, now(3400, bowl(state, 400.0), cost_s=0.25))
    # 1.75 s, and 4 more are 1 s: 1.25 s of the 1.5 s.
    assert (state.rate, state.spent_s) == (pytest.approx(0.4), 1.75)
    # The check is 0.25 s, and 4 more updates 1 s: 1.5 s of the 1.5 s.
    state = TUNING.measured(state, now(3420, bowl(state, 400.0), cost_s=0.25))
    assert state.next_at == pytest.approx(10_000)


def test_a_whole_training_stays_below_its_share() -> None:
    state, at, most = TUNING.begin(1.0), 0.0, 0.0
    while at < 10_000:
        at += BATCH
        if TUNING.is_due(state, at, BATCH):
            at += BATCH
            state = TUNING.measured(state, now(at, bowl(state, 0.7), cost_s=0.04))
            most = max(most, state.spent_s - 0.04)
    assert 2.5 < most <= 3.0


def test_if_nobody_could_measure_the_round_goes_on() -> None:
    state = TUNING.measured(TUNING.begin(1.0), now(10, None, cost_s=0.1))
    assert (state.curves, state.spent_s, state.next_at) == ((), 0.1, 10)
    began = replace(TUNING.begin(1.0), measures=True)
    unknown = MeasuredUpdate(20, BATCH, (1.0, 1.0, 1.0, 1.0), 0.0, 0.0)  # how long a step takes
    assert TUNING.measured(began, unknown) == replace(began, measures=False, next_at=20)


def test_it_travels_as_json() -> None:
    state = TUNING.measured(TUNING.begin(1.0), now(10, (1.0, 2.0, 3.0, math.inf), cost_s=0.1))
    assert TunerState.restore(json.loads(json.dumps(state.snapshot()))) == state


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"total": 0}, "total is 0 samples"),
        ({"total": math.inf}, "total is inf samples"),
        ({"explore": 10_001}, "explore is 10001 samples and total 10000"),
        ({"explore": -1}, "explore is -1 samples"),
        ({"share": 0}, "share is 0"),
        ({"share": 1.5}, "share is 1.5"),
        ({"least": 2e3}, "between 2000 and 1000"),
        ({"most": math.nan}, "between 0.001 and nan"),
    ],
)
def test_what_cannot_be_is_a_sentence(wrong: dict[str, Any], words: str) -> None:
    assert words in str(replace(TUNING, **wrong).refusal())
    assert TUNING.refusal() is None


# --- the way back


def test_it_steps_back_when_the_loss_is_much_higher_after_a_step_up() -> None:
    """A loss of 4 times the largest one of the round is no accident of a batch."""
    high = a_round(TUNING.begin(1.0), 100, least=400.0)
    assert (high.rate, high.back, high.checks) == (pytest.approx(0.4), pytest.approx(0.1), 1)
    most = bowl(TUNING.begin(1.0), 400.0)[0]
    assert high.loss == most
    fine = TUNING.measured(high, now(120, (4.0 * most, 1.0, 1.0, 1.0)))
    assert (fine.rate, fine.checks) == (high.rate, 0)
    for losses in ((4.1 * most, 1.0, 1.0, 1.0), (1.0, 1.0, math.inf, 1.0), (math.nan,) * 4):
        back = TUNING.measured(fine, now(180, losses))
        assert (back.rate, back.peak) == (pytest.approx(0.1), pytest.approx(0.1))
        assert back.ceiling == pytest.approx(0.2)  # the root of 0.1 x 0.4
    again = a_round(back, 400, least=400.0)
    assert again.rate == pytest.approx(0.2), "it does not try that again"
    assert again.reason.startswith("0.1 -> 0.2 at 400 of 10000 samples: ")
    assert back.reason.startswith("0.4 -> 0.1 at 180 of 10000 samples: the loss has gone from ")
    assert TunerState.restore(json.loads(json.dumps(back.snapshot()))) == back


def test_a_second_small_fall_in_a_row_leaves_the_edge() -> None:
    """The edge is where an update changes nothing: at 0.98 and 0.99 times the rate here."""
    once = a_round(replace(TUNING.begin(1.0), rate=1.0), 100, least=0.49)
    assert (once.rate, once.ceiling, once.falls) == (pytest.approx(0.98), 0.0, 1)
    twice = a_round(once, 400, least=0.495)
    edge = 0.98 * 0.99
    assert twice.rate == pytest.approx(0.9 * edge)
    assert twice.ceiling == pytest.approx(0.98 * math.sqrt(0.9 * 0.99))
    assert twice.ceiling < edge
    far = a_round(replace(twice, loss=None), 700, least=400.0)
    assert (far.rate, far.falls) == (pytest.approx(twice.ceiling), 0)
    kept = a_round(once, 400, least=1.0)
    assert a_round(kept, 700, least=0.495).rate == pytest.approx(edge), "not two in a row"
    large = a_round(once, 400, least=0.4)
    assert (large.rate, large.ceiling) == (pytest.approx(0.98 * 0.8), 0.0), "far above the edge"


def test_beyond_a_training_of_exploring_only_nothing_falls() -> None:
    """The rate falls over the samples after ``explore``, of which there are none."""
    whole = replace(TUNING, explore=TUNING.total)
    state = replace(whole.begin(10.0), reach=2.0)
    beyond = TUNING.total + BATCH
    for _ in range(MIN_UPDATES):
        state = whole.measured(state, now(beyond, bowl(state, 0.01)))
    assert state.reason.startswith("keeps 0 at 10010 of 10000 samples: ")


@pytest.mark.parametrize("given", [0.1, 0.3, 1.0, 13.0])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("condition", [100.0, 1000.0])
def test_without_noise_and_ill_conditioned_it_ends_below_the_stable_rate(
    condition: float, momentum: float, given: float
) -> None:
    """Along an update in a flat direction the loss is least far beyond 2 / L; L is 1 here."""
    curvature = np.geomspace(1.0 / condition, 1.0, 20)
    steps = 3000

    def loss(at: Any) -> float:
        return float((curvature * at * at).sum() / 2.0)

    tuning = Tuning(steps, steps / 2, share=0.1, least=given / 1e3, most=given * 1e3)
    state, w, velocity, kept = tuning.begin(given), np.ones(20), np.zeros(20), None
    for step in range(1, steps + 1):
        due, before = tuning.is_due(state, step, 1), w
        velocity = momentum * velocity + curvature * w
        w = w - tuning.rate_at(state, step) * velocity
        if state.measures and kept is not None:
            start, end = kept
            losses = tuple(loss(start + (1.0 + e) * (end - start)) for e in points(state.reach))
            state, kept = tuning.measured(state, MeasuredUpdate(step, 1, losses, 4 / 3, 3.0)), None
        elif due:
            kept, state = (before, w), replace(state, measures=True)
    assert state.peak < 2.0 * (1.0 + momentum)
    assert loss(w) < 1e-3 * loss(np.ones(20))
