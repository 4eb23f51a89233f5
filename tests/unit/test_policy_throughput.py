"""The throughput rule, with numbers worked out by hand, and AutoScaling's published runs."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from edl.policy.hill_climbing import Throughput, marginal_share, ordinal
from edl.policy.observation import Observation, SizeMeasurement, State
from edl.spec import Sizes

ROOT = Path(__file__).parents[2]
RULE = Throughput(every_steps=10, staying_steps=100)
ENOUGH = 100


def seen(**rates: float) -> dict[int, SizeMeasurement]:
    """``n4=400.0``: 4 workers train 400 samples a second, measured for long enough."""
    return {int(name[1:]): SizeMeasurement(rate, ENOUGH) for name, rate in rates.items()}


def at(np: int, most: int = 8, **rates: float) -> Observation:
    return Observation(np, Sizes(1, most), steps=10, seen=seen(**rates))


def asked(now: Observation, state: State | None = None, now_s: float = 0.0) -> tuple[int, str]:
    suggestion = RULE(now, state or {}, now_s)
    return suggestion.np, suggestion.reason


def test_the_share_of_one_more_and_of_several() -> None:
    # 4 workers train 400 together, 100 each. A 5th brings 6 more: 0.06 of what each of the 4 does.
    assert marginal_share(at(4, n4=400.0, n5=406.0), 4, 5) == pytest.approx(0.06)
    # 4 more bring 200, 50 each, half of 100.
    assert marginal_share(at(4, n4=400.0, n8=600.0), 4, 8) == pytest.approx(0.5)
    # ResNet-56 on CIFAR-10, published: 10^7 samples in 1216.2 s with 8 and in 1171.5 s with 4. The
    # 4 more bring (8222.33 - 8536.06) / 4 = -78.43 each, of 8536.06 / 4 = 2134.0 each: -0.0368.
    published = at(8, n4=1e7 / 1171.5, n8=1e7 / 1216.2)
    assert marginal_share(published, 4, 8) == pytest.approx(-0.0368, abs=5e-5)


def test_what_it_says_and_does() -> None:
    assert asked(at(4, n4=400.0)) == (5, "tries 5: only 4 have been measured")
    assert asked(at(1, n1=100.0)) == (2, "tries 2: only 1 has been measured")
    assert asked(at(8, n8=800.0)) == (7, "tries 7: only 8 have been measured")
    grows = at(5, n4=400.0, n5=480.0)  # 80 of 100
    assert asked(grows) == (6, "tries 6: a 5th worker brings 0.80 of its share, more than 0.10")
    shrinks = at(5, n4=400.0, n5=406.0)
    assert asked(shrinks) == (3, "tries 3: a 5th worker brings 0.06 of its share, less than 0.10")
    found = at(4, n3=300.0, n4=400.0, n5=406.0, n2=200.0, n1=100.0)
    why = "stays at 4: a 5th worker brings 0.06 of its share, less than 0.10"
    assert asked(found) == (4, why)
    assert asked(replace(found, np=5))[0] == 4
    most = at(8, n7=700.0, n8=800.0)
    assert asked(most)[0] == 8


def test_the_next_size_is_known_for_a_hundred_steps_before_it_is_left() -> None:
    found = {**seen(n1=100.0, n2=200.0), 3: SizeMeasurement(201.0, 99)}
    now = Observation(3, Sizes(1, 8), steps=99, seen=found)
    share = "a 3rd worker brings 0.01 of its share, less than 0.10"
    assert asked(now) == (3, f"stays at 3 to know it better: {share}, by 99 steps of 100")
    assert asked(replace(now, seen={**found, 3: SizeMeasurement(201.0, 100)}))[0] == 2


def test_it_decides_every_so_many_steps_and_not_while_a_change_is_under_way() -> None:
    now = at(4, n4=400.0)
    assert asked(replace(now, steps=9)) == (4, "4 workers: the next decision in 1 step")
    assert asked(replace(now, awaits=True)) == (4, "the last change is under way")
    first = RULE(replace(now, sizes=Sizes(4, 4)), {}, 0.0)
    assert first.np == 4
    assert RULE(replace(now, steps=19), {"np": 4, "steps": 10}, 0.0).np == 4
    assert RULE(replace(now, steps=20), {"np": 4, "steps": 10}, 0.0).np == 5
    assert RULE(replace(now, steps=10), {"np": 3, "steps": 90}, 0.0).np == 5  # of another size
    # After a death and its replacement: 4 workers again, whose steps are counted from 0.
    assert RULE(replace(now, steps=10), {"np": 4, "steps": 50_000}, 0.0).np == 5


def test_what_was_found_stands_for_a_while() -> None:
    found = at(2, n1=100.0, n2=200.0, n3=201.0)
    suggestion = RULE(found, {}, 50.0)
    assert suggestion.state["found_s"] == 50.0
    changed = replace(found, steps=500, seen=seen(n1=100.0, n2=200.0, n3=300.0))
    assert RULE(changed, suggestion.state, 50.0 + RULE.settled_s - 1.0).np == 2
    # Then 3 workers are measured again, for what was measured before is old.
    again = RULE(changed, suggestion.state, 50.0 + RULE.settled_s)
    assert (again.np, again.state["since_s"]) == (3, 650.0)
    new = {**changed.seen, 3: SizeMeasurement(300.0, ENOUGH, at_s=660.0)}
    assert RULE(replace(changed, np=3, steps=10, seen=new), again.state, 660.0).np == 4


def test_the_next_smaller_size_is_measured_again_before_a_size_stands_again() -> None:
    state = {"np": 3, "steps": 0, "since_s": 650.0, "searches": 1}
    newer = {
        3: SizeMeasurement(300.0, ENOUGH, at_s=700.0),
        4: SizeMeasurement(301.0, ENOUGH, at_s=690.0),
    }
    now = replace(at(3), seen={**seen(n1=100.0, n2=200.0), **newer})
    asks = RULE(now, state, 700.0)
    assert asks.np == 2
    assert asks.reason.startswith("tries 2 again, which was measured long ago; else stays at 3: ")
    known = replace(now, seen={**now.seen, 2: SizeMeasurement(200.0, ENOUGH, at_s=720.0)})
    assert RULE(replace(known, np=2), asks.state, 720.0).np == 3
    found = RULE(known, {**state, "np": 2}, 730.0)
    assert (found.np, found.state["searches"]) == (3, 2)
    # It stands for twice as long as the first one.
    assert RULE(known, found.state, 730.0 + 2 * RULE.settled_s - 1.0).reason == found.reason
    assert RULE(replace(known, steps=500), found.state, 730.0 + 2 * RULE.settled_s).np == 4


def test_only_sizes_that_the_job_may_have_are_tried() -> None:
    now = Observation(2, Sizes(1, 8, sizes=(1, 2, 4, 8)), steps=10, seen=seen(n2=200.0))
    assert asked(now)[0] == 4
    assert asked(replace(now, slots=3))[0] == 1
    assert asked(replace(now, sizes=Sizes(2, 8, size_step=2), seen=seen(n2=200.0)))[0] == 4
    assert asked(replace(now, sizes=Sizes(2, 2))) == (
        2,
        "stays at 2: the job may have no other number of workers",
    )


@pytest.mark.parametrize(
    ("number", "text"),
    [(1, "a 1st"), (2, "a 2nd"), (3, "a 3rd"), (4, "a 4th"), (8, "an 8th"), (11, "an 11th"),
     (12, "a 12th"), (18, "an 18th"), (21, "a 21st"), (80, "an 80th"), (113, "a 113th")],
)  # fmt: skip
def test_ordinals(number: int, text: str) -> None:
    assert ordinal(number) == f"{text} worker"


# --- as published


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.autoscaling")


def walk(runs: ModuleType, training: Any, start: int) -> list[int]:
    return [np for _, np in runs.play(training, start, training.theirs).walk]


def test_it_walks_as_published(runs: ModuleType) -> None:
    assert walk(runs, runs.CIFAR, 24) == [24, 20, 16, 12, 8, 4, 8, 4]
    assert walk(runs, runs.IMAGENET, 32) == [32, 40, 48, 56, 64]
    published = [0.0, 2.2, 7.0, 11.4, 16.4, 20.5, 25.6, 40.5]
    played = [at_s for at_s, _ in runs.play(runs.CIFAR, 24, runs.CIFAR.theirs).walk]
    assert played == pytest.approx(published, abs=3.0)


@pytest.mark.parametrize("name", ["CIFAR", "IMAGENET"])
def test_it_ends_when_they_did_but_where_that_is_explained(runs: ModuleType, name: str) -> None:
    training = getattr(runs, name)
    for start, published in training.scaled_s.items():
        theirs, ours = (runs.play(training, start, pace) for pace in (training.theirs, runs.OURS))
        within = theirs.end_s == pytest.approx(published, rel=0.05)
        assert within != (start in training.explained), (start, theirs.end_s, published)
        assert ours.end_s < theirs.end_s


def test_what_is_explained_is_so(runs: ModuleType) -> None:
    """Their runs that differ were slower than their own static run of the size they went to."""
    for training, start, worker_s, size in (
        (runs.CIFAR, 12, 5656.0, 4),
        (runs.CIFAR, 20, 6156.0, 4),
        (runs.IMAGENET, 48, 169093.0, 64),
    ):
        mean = worker_s / training.scaled_s[start]
        assert mean == pytest.approx(size, rel=0.2)
        assert training.scaled_s[start] > 1.08 * training.static_s[size]


@pytest.mark.parametrize(("speed", "factor"), [(0.75, 0.801), (0.5, 0.659), (0.25, 0.486)])
def test_replaced_stragglers_cost_little(runs: ModuleType, speed: float, factor: float) -> None:
    """``factor``: published seconds with replaced ones, of those with the slow ones."""
    slow, replaced, _ = runs.STRAGGLERS[speed]
    assert replaced / slow == pytest.approx(factor, abs=0.001)
    played, spared = (runs.play_stragglers(speed, replaces) for replaces in (False, True))
    assert runs.play_stragglers(1.0, False) == pytest.approx(runs.NONE_S, rel=0.01)
    assert played == pytest.approx(slow, rel=0.1)
    assert spared < 1.1 * runs.NONE_S


def test_the_page_is_as_it_is_written(runs: ModuleType) -> None:
    for training in (runs.CIFAR, runs.IMAGENET):
        for row in runs.section(training).rows:
            assert f"| {' | '.join(row)} |" in runs.OUT.read_text()
