"""What a job learns of its sizes from readings, and what it wishes then."""

from __future__ import annotations

import json

import pytest

from edl.client.changes import stands
from edl.job.profile import COMMITS, Curve, Point
from edl.policy.goodput import decide_size
from edl.policy.observation import (
    CHANGE_S,
    KEPT_STEPS,
    Observation,
    Rule,
    SizeMeasurement,
    State,
    Suggestion,
)
from edl.policy.scaling_profile import ScalingProfile
from edl.records import JobPolicy, ProgressSample
from edl.spec import Sizes


def reading(step: int, at_s: float, size: int = 2, epoch: int = 0, **other: int) -> ProgressSample:
    values = {"worker": 0, "generation": 1, **other}
    return ProgressSample(
        size=size, epoch=epoch, step=step, samples=10 * size * step, at_s=at_s, **values
    )


def learn(*readings: ProgressSample, learned: ScalingProfile | None = None) -> ScalingProfile:
    learned, before = learned or ScalingProfile(), None
    for now in readings:
        learned, before = learned.with_reading(before, now), now
    return learned


def test_steps_between_two_readings_are_a_throughput() -> None:
    learned = learn(reading(1, 100.0), reading(5, 102.0), reading(11, 104.0))
    # 80 samples in 2 s, then 120 in 2 s: 40 in 4 steps and 60 in 6 steps are 52 on average.
    assert learned.seen == ((2, SizeMeasurement(pytest.approx(52.0), 10, 10.0)),)
    assert (learned.np, learned.steps) == (2, 10)


@pytest.mark.parametrize("other", [{"worker": 1}, {"generation": 2}])
def test_readings_of_others_say_nothing_together(other: dict[str, int]) -> None:
    learned = learn(reading(1, 100.0), reading(5, 102.0, **other))
    assert (learned.seen, learned.np, learned.steps) == ((), 2, 0)


def test_what_lies_between_two_epochs_is_no_throughput() -> None:
    learned = learn(reading(1, 100.0), reading(5, 190.0, epoch=1), reading(7, 191.0, epoch=1))
    assert learned.seen == ((2, SizeMeasurement(pytest.approx(40.0), 2, 10.0)),)
    assert learned.steps == 6  # they were made with 2 workers all the same


def test_a_ring_of_another_size_begins_anew_and_a_repair_does_not() -> None:
    learned = learn(reading(1, 100.0), reading(5, 102.0))
    learned = learn(
        reading(6, 103.0, generation=2), reading(8, 104.0, generation=2), learned=learned
    )
    assert learned.steps == 6
    learned = learn(reading(9, 105.0, size=3, generation=3), learned=learned)
    assert (learned.np, learned.steps) == (3, 0)


def test_a_script_that_counts_no_samples_is_measured_by_its_commits() -> None:
    before, now = (ProgressSample(0, 1, 3, 0, step, 0, float(step)) for step in (1, 5))
    assert learn(before, now).seen == ((3, SizeMeasurement(pytest.approx(3.0), 4, 1.0)),)


def test_an_old_throughput_is_forgotten_bit_by_bit() -> None:
    seen = SizeMeasurement(100.0, 5 * KEPT_STEPS).and_then(SizeMeasurement(200.0, KEPT_STEPS))
    assert seen == SizeMeasurement(150.0, 6 * KEPT_STEPS)


def test_a_profile_tells_of_sizes_that_were_not_seen() -> None:
    points = (Point(1, 30.0, 0.3, 50, 15.0), Point(2, 99.0, 0.3, 50, 15.0))
    learned = learn(reading(1, 100.0), reading(5, 102.0)).with_curve(Curve("digits", 0.0, points))
    assert learned.seen == (
        (1, SizeMeasurement(30.0, 50, 9.0)),
        (2, SizeMeasurement(40.0, 4, 10.0)),
    )
    commits = Curve("digits", 0.0, (Point(3, 9.0, 0.3, 50, 15.0, COMMITS),))
    assert learned.with_curve(commits) == learned


def test_what_a_change_costs_is_what_lies_between_two_rings_and_was_not_trained() -> None:
    """40 samples/s with 2: half a second a step; 2 steps in 3 s, so 2 s are lost."""
    learned = learn(reading(1, 100.0), reading(5, 102.0), reading(7, 105.0, 3, generation=2))
    assert learned.change_s == pytest.approx(2.0)
    assert learned.observation(3, Sizes(1, 4), 4, False, None).change_s == pytest.approx(2.0)
    repaired = learn(reading(1, 100.0), reading(5, 102.0), reading(6, 190.0, generation=2))
    assert repaired.change_s == 0.0
    assert repaired.observation(2, Sizes(1, 4), 4, False, None).change_s == CHANGE_S


@pytest.mark.parametrize(
    "now",
    [
        reading(7, 705.0, 3, generation=2, epoch=1),  # the script has evaluated in between
        reading(7, 7205.0, 3, generation=3),  # generation 2 was below min_np, and paused
    ],
)
def test_other_time_between_two_rings_is_no_cost_of_a_change(now: ProgressSample) -> None:
    learned = learn(reading(1, 100.0), reading(5, 102.0), reading(7, 105.0, 3, generation=2))
    again = learn(reading(1, 100.0), reading(5, 102.0), now, learned=learned)
    assert again.change_s == learned.change_s


def test_it_survives_its_leader() -> None:
    learned = learn(reading(1, 100.0), reading(5, 102.0)).passed(60.0, 2)
    assert (learned.elapsed_s, learned.worker_s) == (60.0, 120.0)
    assert ScalingProfile.from_json(json.loads(json.dumps(learned.to_json()))) == learned


def test_an_observation_counts_steps_of_the_present_size_only() -> None:
    learned = learn(reading(1, 100.0), reading(5, 102.0))
    sizes = Sizes(1, 4)
    assert learned.observation(2, sizes, 4, False, None).steps == 4
    assert learned.observation(3, sizes, 4, False, None).steps == 0


# --- what is wished


def asks(np: int) -> Rule:
    def rule(now: Observation, state: State, now_s: float) -> Suggestion:
        return Suggestion(np, f"wants {np}", {"asked": now_s})

    return rule


def test_a_wish_is_what_the_rule_wants_within_what_may_be() -> None:
    now = Observation(2, Sizes(2, 6, size_step=2), slots=5)
    assert decide_size(asks(4), now, {}, 7.0) == Suggestion(4, "wants 4", {"asked": 7.0})
    assert decide_size(asks(9), now, {}, 7.0) == Suggestion(
        4,
        "wants 9; of 9 it gets 4, for it may have 2 to 6 workers in steps of 2 and there are 5 "
        "slots",
        {"asked": 7.0},
    )
    assert decide_size(asks(1), now, {}, 7.0).np == 2


def test_what_a_person_has_asked_for_counts_for_a_while() -> None:
    now = Observation(3, Sizes(1, 6))
    assert decide_size(asks(5), now, {"a": 1}, 7.0, held_s=600.0) == Suggestion(
        3, "stays at 3: a person has asked for 3 workers, which counts for 10 min more", {"a": 1}
    )


def test_a_hold_counts_from_when_a_leader_saw_it() -> None:
    held = JobPolicy("[size]", "policy.toml", 600.0).held(1e9)
    learned = ScalingProfile(elapsed_s=50.0)
    assert learned.held_s(JobPolicy("[size]", "policy.toml", 600.0)) == 0.0
    assert learned.held_s(held) == 600.0, "no leader has seen it yet"
    seen = learned.for_hold(held)
    assert seen.for_hold(held) is seen
    later = ScalingProfile.from_json(seen.passed(400.0, 2).to_json())
    assert later.held_s(held) == 200.0
    assert later.passed(201.0, 2).held_s(held) == 0.0
    assert later.held_s(held.held(5.0)) == 600.0, "another request, on a host whose clock is behind"


def test_the_words_for_a_hold_say_how_long_it_still_lasts() -> None:
    policy = JobPolicy("[size]", "policy.toml", 600.0).held(1e9)
    assert stands(policy, 120.0) == "on, held by a person for 2 min more"
    assert stands(policy, 0.0) == "on"
