"""The goodput rule, with numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from edl.client.changes import explain
from edl.policy.goodput import Goodput
from edl.policy.observation import Observation, SizeMeasurement, Suggestion
from edl.policy.scaling_profile import ScalingProfile
from edl.policy.step_time import StepTime
from edl.records import Host, JobPolicy
from edl.spec import Sizes
from edl.step.batching import Batching
from edl.testing.counting import known_noise

RULE = Goodput()
# n / (1 + (n - 1) / 8) times 100: 100, 178, 240, 291, 333, 369, 400, 427 for 1 to 8.


def amdahl(np: int) -> float:
    return 100.0 * np / (1 + (np - 1) / 8)


@dataclass(frozen=True)
class Made:
    throughput: Callable[[int], float] = amdahl


NOW = Observation(2, Sizes(1, 8), seen={2: SizeMeasurement(178.0, 50)}, model=Made())


def asked(now: Observation = NOW, rule: Goodput = RULE) -> Suggestion:
    return rule(now, {}, 0.0)


def test_it_grows_to_twice_of_what_was_measured() -> None:
    assert asked().np == 4
    assert asked().reason == "goes to 4: 4 would train +63.6% of what 2 do"
    assert asked(replace(NOW, np=4, seen={4: SizeMeasurement(291.0, 50)})).np == 8
    assert asked(replace(NOW, seen={**NOW.seen, 4: SizeMeasurement(291.0, 50)})).np == 8


def test_for_less_than_five_percent_nothing_is_changed() -> None:
    seven = replace(NOW, np=7)  # 427 / 400: 6.7 %
    assert asked(seven).np == 8
    stays = asked(seven, Goodput(least_gain=0.07))
    assert (stays.np, stays.reason) == (
        7,
        "stays at 7: 8 would train +6.7% of what 7 do, less than 7%",
    )


def test_a_smaller_size_that_trains_as_much_is_taken() -> None:
    flat = asked(replace(NOW, np=6, model=Made(lambda np: min(300.0, 100.0 * np))))
    assert (flat.np, flat.reason) == (3, "goes to 3: it trains as much as 6")


@pytest.mark.parametrize(("left", "np"), [(1000.0, 4), (400.0, 2)])
def test_what_is_left_has_to_repay_the_change(left: float, np: int) -> None:
    # 1000 samples: 5.62 s with 2 and 3.44 s with 4, saved 2.19 s; of 400: 0.87 s. It costs 1 s.
    assert asked(replace(NOW, left=left, change_s=1.0)).np == np


def test_it_decides_every_half_minute() -> None:
    state = asked().state
    asked_s = state["asked_s"]
    later = RULE(NOW, state, asked_s + 29.0)
    assert (later.np, later.state) == (2, state)
    assert RULE(NOW, state, asked_s + 30.0).np == 4
    assert RULE(replace(NOW, awaits=True), {}, 0.0).np == 2
    assert RULE(replace(NOW, model=None), {}, 0.0).np == 2


def test_only_sizes_that_may_be() -> None:
    assert asked(replace(NOW, sizes=Sizes(1, 8, sizes=(1, 2, 3, 8)))).np == 3
    assert asked(replace(NOW, slots=3)).np == 3


def test_a_sample_in_a_larger_batch_is_worth_less() -> None:
    # 10 samples a worker, noise scale 20, measured at 20 samples. With 2 workers a sample counts 1;
    # with 4 (20 / 20 + 1) / (20 / 40 + 1) / 2 = 0.667; 291 * 0.667 = 194 beside 178: 9.1 %.
    noise = known_noise(20.0, 1.0, 20)
    now = replace(NOW, batch=10.0, noise=noise)
    assert RULE.table(now)[4] == pytest.approx(RULE.table(NOW)[4] * 2 / 3)
    assert asked(now).reason == (
        "goes to 4: 4 would make +9.1% of the progress of 2, by a noise scale of 20 samples"
    )
    none = replace(now, noise=known_noise(0.0, 1.0, 20))
    assert asked(none).np == 1, "what all samples of a step say alike, one says as well"
    only = replace(now, noise=known_noise(1.0, -1.0, 20))
    assert asked(only).reason == asked().reason


@pytest.mark.parametrize(
    "batching", [None, Batching(32), Batching(global_batch=128), Batching(batch_range=(64, 512))]
)
def test_without_workers_no_size_has_a_goodput(batching: Batching | None) -> None:
    assert RULE.table(replace(NOW, np=0, batching=batching)) == {}


@pytest.mark.parametrize(("last", "sizes"), [(2, {1, 2, 3, 4}), (0, set())])
def test_a_job_that_has_ended_is_explained_with_its_last_size(last: int, sizes: set[int]) -> None:
    """Its last generation has no members."""
    seen = ((2, SizeMeasurement(178.0, 50, 32.0)),)
    learned = ScalingProfile(
        seen, np=last, step_time=StepTime(0.01, 0.01), batching=Batching(batch_range=(64, 512))
    )
    ended = SimpleNamespace(
        job=SimpleNamespace(sizes=Sizes(1, 8)),
        policy=JobPolicy('[size]\nrule = "goodput"\n', "policy.toml"),
        generation=SimpleNamespace(members=()),
        status=SimpleNamespace(left=None, policy="stays at 2"),
        available=(Host("a", 8, "127.0.0.1"),),
    )
    policies = SimpleNamespace(learned=lambda: learned)
    store: Any = SimpleNamespace(name="digits", snapshot=lambda: ended, policy=policies)
    found = explain(store)
    assert (found.np, set(found.modelled)) == (0, sizes)
