"""What `edl chaos` does, when and to whom: words in, orders, moments and victims out."""

from __future__ import annotations

from itertools import islice
from random import Random

import pytest

from edl.chaos.fault_schedule import (
    Action,
    ObservedWorker,
    Order,
    Plan,
    choose_worker,
    read_duration,
    read_order,
)
from edl.chaos.faults import slowest_parts
from edl.errors import UsageError
from edl.events import Event, SwitchDetails
from edl.records import SwitchParts

RING = [ObservedWorker(0, True, True), ObservedWorker(1, True, True), ObservedWorker(2, True, True)]


@pytest.mark.parametrize(
    ("text", "target", "step"),
    [
        ("leader", "leader", None),
        ("leader@step=40", "leader", 40),
        ("w3@step=100", "w3", 100),
        ("worker", "worker", None),
        ("newcomer", "newcomer", None),
        ("w0", "w0", None),
    ],
)
def test_orders(text: str, target: str, step: int | None) -> None:
    assert read_order(Action.KILL, text) == Order(Action.KILL, target, step)


@pytest.mark.parametrize(
    "text", ["", "boss", "w", "w03", "leader@", "leader@step=", "leader@step=-1", "w1@time=3", "W1"]
)
def test_what_is_no_order_gets_a_sentence(text: str) -> None:
    with pytest.raises(UsageError, match="names nobody: write leader, worker"):
        read_order(Action.FREEZE, text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("5s", 5), ("500ms", 0.5), ("2m", 120), ("1h", 3600), ("2.5", 2.5)]
)
def test_durations(text: str, seconds: float) -> None:
    assert read_duration("--every", text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "-1s", "5 5s", "soon", "1w"])
def test_what_is_no_duration_gets_a_sentence(text: str) -> None:
    with pytest.raises(UsageError, match=r"--every .* is no duration; write 500ms"):
        read_duration("--every", text)


KILL, KILL_LATER = Order(Action.KILL, "worker"), Order(Action.KILL, "leader", 40)


@pytest.mark.parametrize(
    ("orders", "settings", "message"),
    [
        ((), {}, "nothing to do"),
        ((KILL_LATER,), {"every_s": 5.0}, "--every needs an order without @step"),
        ((KILL,), {"count": 3}, "--count needs --every"),
        ((KILL,), {"every_s": 0.0}, "--every must be longer"),
    ],
)
def test_impossible_plans(
    orders: tuple[Order, ...], settings: dict[str, float], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        Plan(orders, 1, **settings)  # type: ignore[arg-type]


def test_an_order_without_a_step_strikes_at_once_and_once() -> None:
    assert list(Plan((KILL, KILL_LATER), 1).moments(Random(1))) == [(0.0, KILL)]


def test_moments_come_so_often_on_average_and_are_the_seeds() -> None:
    cut = Order(Action.CUT, "leader")
    plan = Plan((KILL, cut), 7, every_s=5.0)
    moments = list(islice(plan.moments(Random(7)), 1000))
    assert moments == list(islice(plan.moments(Random(7)), 1000))
    assert moments != list(islice(plan.moments(Random(8)), 1000))
    times = [at for at, _ in moments]
    assert times == sorted(times)
    assert times[-1] / 1000 == pytest.approx(5.0, rel=0.1)
    assert {order for _, order in moments} == {KILL, cut}


def test_the_leader_is_struck_and_nobody_else() -> None:
    order = Order(Action.KILL, "leader")
    assert choose_worker(order, RING, 1, Random(1))[0] == 1
    assert choose_worker(order, RING, None, Random(1)) == (None, "there is no leader on this host")


def test_any_worker_of_the_ring_on_this_host() -> None:
    workers = [*RING[:2], ObservedWorker(2, True, False), ObservedWorker(3, False, True)]
    chosen = {choose_worker(KILL, workers, 0, Random(seed))[0] for seed in range(50)}
    assert chosen == {0, 1}
    assert choose_worker(Order(Action.KILL, "newcomer"), workers, 0, Random(1))[0] == 3
    assert choose_worker(Order(Action.KILL, "w1"), workers, 0, Random(1))[0] == 1
    assert choose_worker(Order(Action.KILL, "w2"), workers, 0, Random(1))[0] is None


def test_the_last_one_that_surely_holds_the_state_is_spared() -> None:
    fresh = [ObservedWorker(0, True, True), ObservedWorker(1, True, True, trained=False)]
    for seed in range(20):
        assert choose_worker(KILL, fresh, 0, Random(seed))[0] == 1
    assert "holds the state" in choose_worker(KILL, fresh[:1], 0, Random(1))[1]
    assert choose_worker(Order(Action.CUT, "worker"), fresh[:1], 0, Random(1))[0] == 0


def test_the_parts_are_those_of_the_old_worker_that_stood_still_longest() -> None:
    workers = {
        "w0": SwitchParts("old", stall_s=0.2, init_s=0.1, median_step_s=9.0),
        "w1": SwitchParts("old", stall_s=0.3, init_s=0.2),
        "w2": SwitchParts("new", stall_s=5.0, init_s=5.0),
    }
    parts = slowest_parts([Event(0.0, 2, 7, "", SwitchDetails(3, workers))])
    assert {name: s for name, s in parts.items() if s} == {"stall_s": 0.3, "init_s": 0.2}
    assert "median_step_s" not in parts
    assert slowest_parts([]) == {}
