"""The global batch that a job chooses, with numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from edl.policy.goodput import Goodput, best_global_batch, choose_batch
from edl.policy.observation import Observation, SizeMeasurement
from edl.spec import Sizes
from edl.step.batching import Batching
from edl.step.noise import NoiseScale
from edl.testing.counting import known_noise


@dataclass(frozen=True)
class Made:
    """A step costs 0.1 s, and 1 ms for each sample of a worker."""

    def throughput(self, np: int) -> float:
        return self.with_batches(np, [100.0])[0]

    def with_batches(self, np: int, batches: Sequence[float]) -> list[float]:
        return [np * batch / (0.1 + 0.001 * batch) for batch in batches]


def noise(scale: float, first_batch: int = 100) -> NoiseScale:
    return known_noise(scale, 1.0, first_batch)


NOW = Observation(
    1,
    Sizes(1, 8),
    seen={1: SizeMeasurement(500.0, 50, 100.0)},
    model=Made(),
    batching=Batching(batch_range=(100, 1600)).choosing(100),
    noise=noise(400.0),
    batches_seen=(100.0, 400.0),
)


def test_the_batch_with_the_largest_goodput() -> None:
    """B / (100 + B) samples for each ms, worth (400 + 100) / (400 + B): most with B = 200.

    For B / ((100 + B)(400 + B)) is largest at the root of 100 x 400. The goodput there is
    1000 x 200/300 x 500/600 = 556, beside 1000 x 100/200 = 500 with 100.
    """
    batch, goodput = best_global_batch(NOW, 1)
    assert batch == pytest.approx(200, abs=6)  # the candidates are 1.058 apart
    assert goodput == pytest.approx(555.6, rel=1e-3)
    choice = choose_batch(NOW)
    assert choice.batch == batch
    assert choice.reason == (
        f"the global batch becomes {batch}: {batch} would make +11.1% of its progress, by a noise "
        "scale of 400"
    )


def test_more_noise_and_more_workers_are_for_a_larger_batch() -> None:
    """The root of 100 x 1600 is 400; with 2 workers, whose step costs 200 samples, of 200 x 400."""
    assert best_global_batch(replace(NOW, noise=noise(1600.0)), 1)[0] == pytest.approx(
        400, rel=0.06
    )
    assert best_global_batch(NOW, 2)[0] == pytest.approx(283, rel=0.06)


def test_nothing_is_tried_far_beyond_what_was_measured() -> None:
    """All noise: the largest would be the best; 100 and 150 were measured, so 300 may be tried."""
    endless = replace(NOW, noise=noise(1e12), batches_seen=(100.0, 150.0))
    assert best_global_batch(endless, 1)[0] == 300
    assert best_global_batch(endless, 4)[0] == 1200


def test_a_single_batch_tells_nothing_so_another_one_is_tried() -> None:
    choice = choose_batch(replace(NOW, batches_seen=(100.0,)))
    assert choice == (200, "the global batch becomes 200: one size of it tells nothing")


def test_a_batch_that_counts_as_the_same_is_not_tried() -> None:
    """100 and 125 are one measured batch, so trying would go on for ever, up and down."""
    narrow = replace(NOW, batching=Batching(batch_range=(100, 125)).choosing(100))
    choice = choose_batch(replace(narrow, noise=noise(1.0), batches_seen=(100.0,)))
    assert choice.batch == 0
    assert choice.reason.endswith("of its progress, by a noise scale of 1, less than 5%")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"awaits": True}, "the workers change"),
        ({"model": None}, "its steps are yet to be measured"),
        ({"seen": {1: SizeMeasurement(500.0, 9, 100.0)}}, "its steps are yet to be measured"),
        ({"seen": {1: SizeMeasurement(500.0, 50, 180.0)}}, "its steps are yet to be measured"),
        ({"noise": NoiseScale()}, "the gradient noise scale is not known"),
        ({"noise": noise(130.0)}, "of its progress, by a noise scale of 130, less than 5%"),
    ],
)
def test_it_stays(change: dict[str, Any], why: str) -> None:
    choice = choose_batch(replace(NOW, **change))
    assert choice.batch == 0
    assert choice.reason.startswith("the global batch stays 100: ")
    assert choice.reason.endswith(why)


def test_the_rule_for_the_size_knows_the_batch_that_each_would_have() -> None:
    """At most 200 together: 4 workers train 200 / 0.15 s, 8 train 200 / 0.125 s."""
    now = replace(
        NOW, np=4, seen={4: SizeMeasurement(1333.0, 50, 50.0)}, batching=Batching(100, 200)
    )
    rates = Goodput().table(replace(now, noise=NoiseScale()))
    assert rates[1] == pytest.approx(500.0)
    assert rates[4] == pytest.approx(200 / 0.15)
    assert rates[8] == pytest.approx(200 / 0.125)
    chosen = Goodput().table(replace(now, batching=NOW.batching, noise=NOW.noise))
    assert chosen[2] == best_global_batch(NOW, 2)[1]


def test_of_several_batches_that_make_a_step() -> None:
    """4 batches of 50 make a step of 200, which is the best; 50 is the fewest of one."""
    now = replace(
        NOW,
        batching=Batching(batch_range=(50, 400)),
        step_batches=4,
        seen={1: SizeMeasurement(667.0, 50, 200.0)},
        noise=noise(400.0, 200),
    )
    assert choose_batch(now).reason.startswith("the global batch stays 50: ")
    assert "less than 5%" in choose_batch(now).reason
