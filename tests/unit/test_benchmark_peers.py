"""edl beside its peers: gaps on step logs made by hand, and what the page says of them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.goodput import Goodput
from benchmarks.jobs import Steps
from benchmarks.peers.measure import COORDINATOR, FREEZE, JOIN, KILL, LEAVE, Outcome, Session, gap_s
from benchmarks.peers.page import Peers, page
from benchmarks.peers.steps import Pair
from benchmarks.step_time import Comparison


def log(worker: int, *times_s: float) -> Steps:
    numbers = np.arange(1, len(times_s) + 1)
    return Steps(worker, np.array(times_s), numbers, np.full(len(times_s), 2))


def test_a_gap_is_that_of_the_job_also_where_all_workers_are_started_anew() -> None:
    old = [log(1, 0.0, 1.0, 2.0), log(2, 0.1, 1.1, 2.1)]
    anew = [log(3, 7.0, 8.0), log(4, 7.2, 8.2)]
    assert gap_s([*old, *anew], 2.5, 9.0) == pytest.approx(4.9)
    assert gap_s(old, 0.5, 2.05) == pytest.approx(0.9), "a step of both, before the event"
    assert gap_s([*old, *anew], 2.5, 7.1) == pytest.approx(4.9), "the end is the last step before"


def session(kill: Outcome, join: Outcome) -> Session:
    quick = Outcome(0.1, 0.5)
    outcomes = {JOIN: join, LEAVE: quick, KILL: kill, COORDINATOR: quick, FREEZE: Outcome(1.2)}
    return Session(2.0, 0.04, 0.06, outcomes)


def comparison(ratio: float) -> Comparison:
    return Comparison(0.05, 0.05 * ratio, (ratio,), ratio, ratio, ratio, 0.04, 0.03, 0.0, 0.005)


def text(*edl: Session) -> str:
    ends = Outcome(None, why="the job ends")
    other = session(ends, Outcome(6.0, 7.0))
    large = Session(5.0, 1.0, 1.2, {JOIN: Outcome(1.5), LEAVE: Outcome(1.01)})
    peers = Peers(
        {"edl": edl, "torchft": [other, other], "torchrun": "does not run: needs root"},
        [(Pair("edl", goal=0.8), comparison(0.79)), (Pair("edl", "50M", goal=1.0), "no step")],
        {2: 0.02, 4: 0.07, 8: 0.1, 16: 0.4},
        {"edl": large, "torchft": "no"},
        {"edl": Goodput(100.0, 95.0, 0, (), 0.0)},
        {"edl": "the worker that leads"},
        60.0,
    )
    return page(peers, "2 cores")


def row(page: str, name: str) -> list[str]:
    (line,) = (line for line in page.splitlines() if line.startswith(f"| {name}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_goal_is_compared_with_the_greatest_gap_less_a_step() -> None:
    good, slow = Outcome(0.07, 1.0), Outcome(0.09, 1.0)
    found = text(session(Outcome(0.15, 0.4), good), session(Outcome(0.16, 0.6), slow))
    joins = row(found, f"{JOIN}: gap")
    assert joins[1] == "0.08 (0.07 to 0.09)"
    assert joins[-1] == "a step and 0.02: **no**", "0.09 s is more than 0.06 s and 0.02 s"
    assert row(found, f"{KILL}: gap")[-1] == "a step and 0.15: yes"
    assert row(found, "the same: in force after")[-1] == "at most torchft's: yes"
    assert row(found, FREEZE)[-1] == "1.5: yes"


def test_a_job_that_ends_is_said_and_what_does_not_run_has_its_error() -> None:
    found = text(session(Outcome(0.15, 0.4), Outcome(0.07, 1.0)))
    kills = row(found, f"{KILL}: gap")
    assert kills[2:4] == ["the job ends", ""]
    assert row(found, "start")[3] == "does not run: needs root"
    assert row(found, "edl | 50M")[3] == "no step"


def test_what_a_quick_run_leaves_out_is_an_empty_cell_and_reaches_no_goal() -> None:
    left = Session(2.0, 0.04, math.nan, {JOIN: Outcome(None, why="not within 120 s")})
    found = text(left)
    assert row(found, f"{KILL}: gap")[1] == ""
    assert row(found, f"{KILL}: gap")[-1] == "a step and 0.15: **no**"
    assert row(found, "a step of two")[1] == "40 ms"


def test_steps_and_rings_have_their_goals() -> None:
    found = text(session(Outcome(0.15, 0.4), Outcome(0.07, 1.0)))
    assert "0.79 (0.79 to 0.79) | 0.8: yes" in found
    assert row(found, "4 ")[-1] == "0.06: **no**"
    assert row(found, "[goodput")[1] == "95.0%"


def test_a_join_and_a_leave_of_the_large_model_are_told_beyond_a_step() -> None:
    _, large = text(session(Outcome(0.15, 0.4), Outcome(0.07, 1.0))).split("A model of 100M")
    assert row(large, "edl")[1:4] == ["1.50", "1.20", "0.30 (goal 0.02: **no**)"]
    assert row(large, "edl")[4:] == ["1.01", "1.00", "0.01 (goal 0.02: yes)"]
    assert row(large, "torchft")[1] == "no"
