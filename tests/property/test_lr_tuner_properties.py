"""A tuner on a bowl: whatever it is told, the learning rate stays where it may be."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from edl.contrib.lr_rules import MeasuredUpdate, TunerState, Tuning, fitted, points

TOTAL, BATCH = 60_000, 10
LOSSES = st.floats(allow_nan=True, allow_infinity=True)
FEW = settings(max_examples=30)


def trained(given_rate: float, noise: float, seed: int) -> tuple[Tuning, TunerState, TunerState]:
    """Return the states after exploring and at the end; the loss is least at rate 1.

    ``noise``: the deviation of each loss, as a part of it.
    """
    chance = random.Random(seed)
    tuning = Tuning(TOTAL, TOTAL / 2, 0.03, given_rate / 1e3, given_rate * 1e3)
    state = explored = tuning.begin(given_rate)
    at = 0.0
    while at < TOTAL:
        at += BATCH
        if not tuning.is_due(state, at, BATCH):
            continue
        at += BATCH
        rate = tuning.rate_at(state, at)
        clean = [1.0 + ((1.0 + e) * rate - 1.0) ** 2 for e in points(state.reach)]
        losses = tuple(loss * chance.gauss(1.0, noise) for loss in clean)
        state = tuning.measured(state, MeasuredUpdate(at, BATCH, losses, 0.1, 0.1))
        if at <= TOTAL / 2:
            explored = state
    return tuning, explored, state


@FEW
@given(a1=st.floats(-9, 9), a2=st.floats(0.1, 9), a0=st.floats(-9, 9), reach=st.floats(1.5, 8))
def test_a_bowl_is_solved_exactly(a0: float, a1: float, a2: float, reach: float) -> None:
    at = points(reach)
    found = fitted(at, [a0 + a1 * e + a2 * e * e for e in at])
    least = found.minimum(reach)
    assert least is not None
    assert abs(least - (1.0 - a1 / (2.0 * a2))) < 1e-6


@FEW
@given(rate=st.sampled_from([0.01, 0.1, 0.3, 1.0, 3.0, 10.0]))
def test_without_noise_it_comes_to_the_bowl_from_100_times_too_low_to_10_times_too_high(
    rate: float,
) -> None:
    _, explored, end = trained(rate, 0.0, 0)
    assert 0.4 <= explored.peak <= 2.0
    assert end.rate <= 1.0 + 1e-9


@settings(max_examples=60)
@given(rate=st.sampled_from([0.1, 1.0, 10.0]), seed=st.integers(0, 10_000))
def test_noise_of_a_fifth_does_not_make_it_run_away(rate: float, seed: int) -> None:
    _, explored, end = trained(rate, 0.2, seed)
    assert 0.01 * rate <= explored.peak <= 5.0
    assert end.rate <= explored.peak


@FEW
@given(
    rate=st.floats(1e-6, 1e3),
    told=st.lists(
        st.tuples(st.none() | st.tuples(LOSSES, LOSSES, LOSSES, LOSSES), st.floats(0, 10)),
        max_size=60,
    ),
)
def test_it_never_leaves_its_limits(
    rate: float, told: list[tuple[tuple[float, ...] | None, float]]
) -> None:
    tuning = Tuning(1000, 500, 0.03, rate / 50, rate * 20)
    state, at = tuning.begin(rate), 0.0
    for losses, cost_s in told:
        at += BATCH
        state = tuning.measured(state, MeasuredUpdate(at, BATCH, losses, cost_s, 0.1))
        assert tuning.least <= state.peak <= tuning.most
        assert 0.0 <= tuning.rate_at(state, at) <= tuning.most
        if at <= tuning.explore:
            assert tuning.least <= state.rate <= tuning.most
