"""The driver of horovodrun forgets a change of hosts that it finds while its rank 0 starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from made import make_job, wanted

from edl.config import HorovodSlot
from edl.host.horovodrun import driver, slot
from edl.host.horovodrun.decide import placed_otherwise
from edl.host.horovodrun.driver import Driver, ElasticLimits, Launcher, RankAssignment, discovered
from edl.host.horovodrun.slot import LateStart
from edl.job.snapshot import Snapshot

SLOT = HorovodSlot("10.0.0.1", 1, "a", 0, 0, 2, 1, "lo")  # rank 0 of 2
NOW = Snapshot(make_job(driver="10.0.0.1:1"), **wanted({"a": 1, "b": 1}, by_slot=True))
LIMITS = ElasticLimits(np=2, min_np=1, max_np=4)


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot, "find_launcher", lambda: None)


def asks(driver: Driver, *moments: float, snapshot: Snapshot = NOW) -> list[bool]:
    late = LateStart(driver, discover_s=5.0)
    return [late.has_missed_hosts(snapshot, moment) for moment in (0.0, *moments)]


def test_rank_0_asks_once_after_its_start() -> None:
    assert asks(Driver(SLOT), 4.9, 5.0, 6.0, 100.0) == [False, False, True, False, False]


def test_another_rank_is_told_of_nothing_in_any_case() -> None:
    assert not any(asks(Driver(replace(SLOT, rank=1)), 5.0, 100.0))


def test_a_placement_since_the_start_knew_all_hosts() -> None:
    driver = Driver(SLOT)
    late = LateStart(driver, discover_s=5.0)
    assert not late.has_missed_hosts(NOW, 0.0)
    driver.newest = RankAssignment(0, 1, 2)
    assert not late.has_missed_hosts(NOW, 5.0)


def test_slots_that_are_still_to_come_are_awaited() -> None:
    late = LateStart(Driver(SLOT), discover_s=5.0)
    few = Snapshot(NOW.job, **wanted({"a": 1}, by_slot=True))
    assert not late.has_missed_hosts(few, 0.0)
    assert not late.has_missed_hosts(few, 50.0)
    assert late.has_missed_hosts(NOW, 51.0)


@pytest.mark.parametrize(
    ("words", "limit", "script", "asked"),
    [
        ((), None, "exit 1", True),  # not run: a placement more costs nothing
        (("--reset-limit", "3"), 3, "printf 'a:1\nb:1\n'", False),
        (("--reset-limit=3",), 3, "printf 'a:1\nb:1\nc:1\n'", True),
        (("--reset-limit", "3"), 3, "exit 1", False),
    ],
)
def test_a_limited_number_of_placements_is_spent_on_other_hosts_only(
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    limit: int | None,
    script: str,
    asked: bool,
) -> None:
    limits = replace(LIMITS, reset_limit=limit, discovery=script)
    found = Launcher(1, "then", ("python", "horovodrun", *words))
    monkeypatch.setattr(Launcher, "limits", lambda self: limits)
    monkeypatch.setattr(slot, "find_launcher", lambda: found)
    assert asks(Driver(SLOT), 5.0) == [False, asked]


def test_horovodruns_own_words_are_read() -> None:
    words = "-np 2 --min-np 1 --reset-limit 3 --slots-per-host 2 --host-discovery-script"
    command = ("python", "/bin/horovodrun", *words.split(), "./mine a", "python", "train.py")
    found = driver.Launcher(1, "then", command)
    limits = found.limits()
    assert limits == ElasticLimits(2, 1, None, reset_limit=3, discovery="./mine a", slots=2)
    assert found.may_limit_resets()
    assert not replace(found, command=command[:6]).may_limit_resets()


def test_a_discovery_script_is_run_as_horovod_runs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_text("#!/bin/sh\necho a:$1\necho b\n")
    (tmp_path / "mine").chmod(0o755)
    assert discovered(replace(LIMITS, discovery="./mine 3", slots=2)) == {"a": 3, "b": 2}
    assert discovered(replace(LIMITS, discovery="./mine x")) is None
    assert discovered(replace(LIMITS, discovery="./none")) is None


@pytest.mark.parametrize(
    ("found", "max_np", "otherwise"),
    [
        ({"a": 2, "b": 2}, 4, False),
        ({"b": 2, "a": 2}, None, False),
        ({"a": 2, "b": 2, "c": 0}, None, False),
        ({"a": 2, "b": 2, "0": 4}, 4, False),  # new hosts come last, and there is no room
        ({"a": 2, "b": 2, "0": 4}, 5, True),
        ({"a": 2, "b": 3}, 4, False),
        ({"a": 2, "b": 1}, 4, True),
        ({"a": 2}, 4, True),
        ({"a": 2, "c": 2}, 4, True),
        ({}, 4, True),
    ],
)
def test_what_the_driver_would_place_otherwise(
    found: dict[str, int], max_np: int | None, otherwise: bool
) -> None:
    assert placed_otherwise({"a": 2, "b": 2}, found, max_np, 1) is otherwise


def test_too_few_slots_let_the_driver_wait_for_more() -> None:
    assert placed_otherwise({"a": 2}, {"a": 2}, None, 3)
