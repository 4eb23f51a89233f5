"""Who is a straggler, what at, and what is done; with numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edl.policy.observation import State
from edl.policy.stragglers import Mitigation, StragglerCause, Stragglers, Times

RULE = Stragglers(patience_steps=1)


def ring(*compute_s: float, host: str = "abcdefgh", **data_s: float) -> list[Times]:
    return [
        Times(worker, host[worker], 32.0, seconds, data_s.get(f"w{worker}", 0.01))
        for worker, seconds in enumerate(compute_s)
    ]


def after(steps: int, times: list[Times], rule: Stragglers = RULE) -> Mitigation:
    state: State = {}
    for _ in range(steps):
        care = rule(times, state)
        state = care.state
    return care


@pytest.mark.parametrize(
    ("speed", "steps"),
    # From 1, after n steps: speed + (1 - speed) * 0.9^n < 0.8. With 0.75: 0.9^n < 0.2, so n = 16
    # (0.185; 0.206 after 15); with 0.5: < 0.6, n = 5 (0.590); with 0.25: < 0.7333, n = 3 (0.729).
    [(0.75, 16), (0.5, 5), (0.25, 3)],
)
def test_a_worker_is_slow_after_so_many_steps(speed: float, steps: int) -> None:
    times = [Times(w, "a", 32.0, 0.1 / (speed if w == 2 else 1.0)) for w in range(5)]
    assert not after(steps - 1, times).findings
    [finding] = after(steps, times).findings
    assert (finding.workers, finding.host, finding.at) == ((2,), "", StragglerCause.COMPUTE)


def test_several_steps_at_once_count_as_many() -> None:
    alone = [Times(w, "a", 32.0, 0.2 if w == 2 else 0.1, steps=1) for w in range(5)]
    together = [Times(w, "a", 32.0, 0.2 if w == 2 else 0.1, steps=20) for w in range(5)]
    speed = after(20, alone).state["2"]["speed"]
    assert after(1, together).state["2"]["speed"] == pytest.approx(speed)


def test_a_slow_one_gets_less_and_a_very_slow_one_is_replaced() -> None:
    little = after(200, ring(0.1, 0.1, 0.1, 0.1538))  # 0.11 / 0.1638 of the usual
    assert little.shares == {3: pytest.approx(0.672, abs=0.001)}
    assert little.replace == ()
    much = after(200, ring(0.1, 0.1, 0.1, 0.43))  # a quarter
    assert much.shares == {3: pytest.approx(0.25, abs=0.001)}
    assert much.replace == (3,)
    stays = Stragglers(patience_steps=1, replaces=False)
    assert after(200, ring(0.1, 0.1, 0.1, 0.43), stays).replace == ()
    assert str(much.findings[0]) == "w3 computes at 0.25 of the usual speed"


def test_one_with_a_smaller_share_is_as_slow_as_before() -> None:
    """Its step is as short as that of the others; what it trains in a second is not more."""
    times = [*ring(0.1, 0.1, 0.1), Times(3, "d", 16.0, 0.1, 0.01)]
    assert after(200, times).shares == {3: pytest.approx(0.5, abs=0.001)}


def test_it_has_to_be_slow_for_long() -> None:
    rule = Stragglers(patience_steps=50)
    times = ring(0.1, 0.1, 0.1, 0.4)
    assert not after(52, times, rule).findings  # slow from the third on
    assert after(53, times, rule).findings
    state = after(52, times, rule).state
    for _ in range(30):  # a pause
        state = rule(ring(0.1, 0.1, 0.1, 0.1), state).state
    assert state["3"]["steps"] == 0


def test_slow_data_are_named_and_nobody_is_replaced_for_them() -> None:
    care = after(200, ring(0.1, 0.1, 0.1, 0.1, w1=0.5))
    assert [(f.workers, f.at) for f in care.findings] == [((1,), StragglerCause.DATA)]
    assert (care.shares, care.replace) == ({}, ())
    assert str(care.findings[0]) == "w1 loads its data at 0.18 of the usual speed"


def test_a_slow_host_is_one_finding() -> None:
    care = after(200, ring(0.1, 0.1, 0.1, 0.1, 0.1, 0.4, 0.4, host="aaaaabb"))
    [finding] = care.findings
    assert (finding.host, finding.workers) == ("b", (5, 6))
    assert str(finding) == "host b (w5, w6) computes at 0.27 of the usual speed"
    assert care.replace == (5, 6)
    one = after(200, ring(0.1, 0.1, 0.1, 0.1, 0.1, 0.4, 0.1, host="aaaaabb"))
    assert [f.host for f in one.findings] == [""]


def test_two_workers_say_nothing_of_each_other() -> None:
    assert after(100, ring(0.1, 0.9)) == Mitigation({}, (), (), {})


def test_who_has_trained_nothing_is_as_fast_as_before() -> None:
    state = after(200, ring(0.1, 0.1, 0.1, 0.4)).state
    idle = [replace(one, samples=0.0) for one in ring(0.1, 0.1, 0.1, 0.1)]
    assert RULE([*ring(0.1, 0.1, 0.1), idle[3]], state).state["3"] == state["3"]
    assert RULE(idle, state).state == state


def test_a_slow_network_is_nobodys_fault() -> None:
    times = [replace(one, reduce_s=0.33 + 0.1 * one.worker) for one in ring(0.1, 0.1, 0.1)]
    care = after(200, times)
    assert [str(each) for each in care.findings] == [
        "reducing takes 75% of each step, on all workers alike"
    ]
    assert (care.shares, care.replace) == ({}, ())
    fast = [replace(one, reduce_s=0.5 - 0.2 * one.worker) for one in times]
    assert not after(200, fast).findings
