"""Horovod's elastic scenarios: the verdict about one, and the table of results."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.scenarios import report
from benchmarks.scenarios.play import SAMPLES, Played
from benchmarks.scenarios.table import SCENARIOS, A, B, Scenario
from benchmarks.scenarios.verdict import edl_problems, problems

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
BY_NAME = {one.name: one for one in SCENARIOS}
MOVES, FAILS = BY_NAME["moves-2"], BY_NAME["all-fail"]


def line(start_rank: int, size: int, host: str, rendezvous: int) -> dict[str, Any]:
    return {"start_rank": start_rank, "size": size, "host": host, "rendezvous": rendezvous}


def counted(times: int) -> dict[str, Any]:
    return {"pid": 1, "wrong": [], "counts": {str(times): SAMPLES}, "w_sha256": "same"}


PLAYED = Played(
    0,
    10.0,
    (line(0, 2, A, 1), line(0, 4, A, 2), line(2, 2, B, 3)),
    "",
    reports=(counted(3), counted(3)),
)


def test_a_scenario_that_went_as_expected_has_passed() -> None:
    assert problems(MOVES.stock, PLAYED) == []
    assert edl_problems(MOVES, PLAYED) == []


def test_it_does_not_matter_which_of_two_hosts_the_driver_takes_first() -> None:
    turned = tuple({**one, "host": B if one["host"] == A else A} for one in PLAYED.lines)
    assert problems(MOVES.stock, replace(PLAYED, lines=turned)) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"code": 1}, "horovodrun ended with 1"),
        ({"code": None}, "hangs: horovodrun did not end in 10 s"),
        ({"lines": PLAYED.lines[:2]}, "2 epochs ended in place of 3"),
        (
            {"lines": (*PLAYED.lines[:2], line(0, 2, B, 3))},
            "epoch 2 ended with a ring of 2, led by start rank 0 on 127.0.0.1",
        ),
        (
            {"lines": (*PLAYED.lines[:2], line(2, 2, B, 2))},
            "epochs 1 and 2 ended in the rings 2 and 2",
        ),
        ({"left": ("python train.py",)}, "this outlived horovodrun: python train.py"),
        ({"reports": (counted(3), counted(2))}, "counted {'2': 2880}"),
        ({"reports": (counted(3),)}, "1 workers trained to the end"),
    ],
)
def test_what_differs_is_named(changes: dict[str, Any], said: str) -> None:
    (problem,) = edl_problems(MOVES, replace(PLAYED, **changes))
    assert said in problem


def test_a_job_that_has_to_fail_must_say_why() -> None:
    played = Played(1, 5.0, (line(0, 4, A, 1),), "edl: job j has failed: all workers died, ...")
    assert edl_problems(FAILS, played) == []
    assert edl_problems(FAILS, replace(played, code=0)) == ["horovodrun ended with 0"]
    (problem,) = edl_problems(FAILS, replace(played, output=""))
    assert problem == "the output does not say 'all workers died'"


def test_a_cell_of_the_table_says_passed_or_failed_how() -> None:
    played = replace(PLAYED, pause_s=0.18)
    text = report.cell(report.result(played, []))
    assert text == "passed: 2, 4, 2 (10 s, longest pause 0.18 s)"
    text = report.cell(report.result(replace(played, code=1), []))
    assert text == "passed: 2, 4, 2, then horovodrun fails (10 s)"
    text = report.cell(report.result(played, ["it hangs", "and more"]))
    assert text == "**failed**: it hangs; and more (10 s)"


def test_the_table_is_written_where_the_page_has_a_place_for_it() -> None:
    page = f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n"
    assert report.into(page, "new") == page.replace("old", "new")
    with pytest.raises(ValueError, match="the page has no"):
        report.into("before", "new")


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: str(one.name))
def test_a_scenario_asks_for_what_its_hosts_can_hold(scenario: Scenario) -> None:
    for expected in (scenario.stock, scenario.edl):
        assert len(expected.lines) == scenario.epochs or expected.says
        for epoch, line in enumerate(expected.lines):
            slots = scenario.hosts_in(epoch)
            assert line.size <= min(scenario.max_np, sum(slots.values()))
            assert line.host in slots


def test_the_table_of_results_is_that_of_the_last_run() -> None:
    found = json.loads((RESULTS / "horovod-scenarios.json").read_text())["scenarios"]
    assert [one["name"] for one in found] == [one.name for one in SCENARIOS]
    page = (RESULTS / "horovod-scenarios.md").read_text()
    assert report.into(page, report.markdown(found)) == page
